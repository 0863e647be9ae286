"""Every name of TensorRT's Python API that this project calls, to be checked against real bindings.

`tests/test_tensorrt_names.py` looks them up in the bindings of 10.3, 10.16 and 11.4 and in
TensorRT-RTX. Names prove that a call exists, never what it does.
"""

from __future__ import annotations

REQUIRED = (
    "__version__",
    # build: export/tensorrt_build.py
    "Builder.build_serialized_network",
    "Builder.create_builder_config",
    "Builder.create_network",
    "Builder.create_optimization_profile",
    "BuilderFlag.STRIP_PLAN",
    "BuilderFlag.VERSION_COMPATIBLE",
    "HardwareCompatibilityLevel.AMPERE_PLUS",
    "IBuilderConfig.add_optimization_profile",
    "IBuilderConfig.create_timing_cache",
    "IBuilderConfig.hardware_compatibility_level",
    "IBuilderConfig.progress_monitor",
    "IBuilderConfig.set_flag",
    "IBuilderConfig.set_memory_pool_limit",
    "IBuilderConfig.set_timing_cache",
    "INetworkDefinition.get_input",
    "INetworkDefinition.get_layer",
    "INetworkDefinition.num_inputs",
    "INetworkDefinition.num_layers",
    "ILayer.type",
    "ILogger.Severity.ERROR",
    "IOptimizationProfile.set_shape",
    "IProgressMonitor.phase_finish",
    "IProgressMonitor.phase_start",
    "IProgressMonitor.step_complete",
    "ITensor.name",
    "ITensor.shape",
    "ITimingCache.serialize",
    "MemoryPoolType.WORKSPACE",
    "OnnxParser.get_error",
    "OnnxParser.num_errors",
    "OnnxParser.parse_from_file",
    "ParserError.desc",
    "ParserError.node_name",
    "ParserError.node_operator",
    # run: engines/tensorrt_engine.py, engines/tensorrt_step.py
    "ExecutionContextAllocationStrategy.USER_MANAGED",
    "ICudaEngine.create_execution_context",
    "ICudaEngine.device_memory_size_v2",
    "ICudaEngine.get_tensor_dtype",
    "ICudaEngine.get_tensor_name",
    "ICudaEngine.num_io_tensors",
    "IExecutionContext.execute_async_v3",
    "IExecutionContext.set_device_memory",
    "IExecutionContext.set_input_shape",
    "IExecutionContext.set_optimization_profile_async",
    "IExecutionContext.set_tensor_address",
    "Runtime.deserialize_cuda_engine",
    "Runtime.engine_host_code_allowed",
    "DataType.FLOAT",
    "DataType.HALF",
    "DataType.INT32",
    "DataType.INT64",
)
# asked for with hasattr, or used only where another name says that they are there
DETECTED = (
    "ComputeCapability.SM86",
    "BuilderFlag.REFIT_IDENTICAL",
    "IAttentionInputLayer.attention",
    "IBuilderConfig.num_compute_capabilities",
    "IBuilderConfig.set_compute_capability",
    "ICudaEngine.get_aliased_input_tensor",
    "INetworkDefinition.add_attention",
    "INetworkDefinition.add_kv_cache_update",
    "NetworkDefinitionCreationFlag.STRONGLY_TYPED",
    # engines/tensorrt_refit.py
    "OnnxParserRefitter.get_error",
    "OnnxParserRefitter.num_errors",
    "OnnxParserRefitter.refit_from_file",
    "Refitter.get_missing_weights",
    "Refitter.refit_cuda_engine",
)
