"""Errors as an HTTP client sees them, in the form OpenAI's clients expect."""

from __future__ import annotations

import json

_LONGEST = 600  # characters; a message quotes what was sent, which can be long


class ApiError(Exception):
    """A request that gets no answer, and why.

    Attributes:
        status: HTTP status.
        retry_after_s: Seconds after which to try again, None if that changes nothing.

    Args:
        status: HTTP status.
        message: One sentence.
        param: Field of the request at fault.
        code: Short name of the error.
        retry_after_s: As the attribute.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_s = retry_after_s
        self._param = param
        self._code = code

    def body(self) -> bytes:
        """The error as a JSON object."""
        message = " ".join(str(self).split())
        if len(message) > _LONGEST:
            message = f"{message[: _LONGEST // 2]} ... {message[-_LONGEST // 2 :]}"
        error = {
            "message": message,
            "type": _kind(self.status),
            "param": self._param,
            "code": self._code,
        }
        return json.dumps({"error": error}).encode()

    def headers(self) -> dict[str, str]:
        """Headers of the response besides its type."""
        found = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        return found | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def _kind(status: int) -> str:
    if status == 401:
        return "authentication_error"
    if status == 429:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"
