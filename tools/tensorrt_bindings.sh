#!/usr/bin/env bash
# Fetches TensorRT's Python bindings of three versions and builds stub libraries for them to load, so
# that names can be looked up without TensorRT. Nothing of it can run a model.
#
#   bash tools/tensorrt_bindings.sh PYTHON FOLDER
set -euo pipefail
python=$1 folder=$2
mkdir -p "$folder"
cat > "$folder/stub.c" << 'C'
#define STUB(name) void* name(void) { return 0; }
STUB(createInferBuilder_INTERNAL) STUB(createInferRefitter_INTERNAL) STUB(createInferRuntime_INTERNAL)
STUB(getBuilderPluginRegistry) STUB(getPluginRegistry) STUB(createNvOnnxParser_INTERNAL)
STUB(createNvOnnxParserRefitter_INTERNAL) STUB(getNvOnnxParserVersion) STUB(initLibNvInferPlugins)
C
for package in cu12-bindings==10.3.0 cu12-bindings==10.16.1.11 cu13-bindings==11.4.0.106; do
  version=${package#*==}
  [ -f "$folder/$version/done" ] && continue
  "$python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --upgrade --target "$folder/$version" "tensorrt-$package"
  for library in nvinfer nvonnxparser nvinfer_plugin; do
    name=lib$library.so.${version%%.*}
    gcc -shared -fPIC -Wl,-soname,"$name" -o "$folder/$version/$name" "$folder/stub.c"
  done
  touch "$folder/$version/done"
done
