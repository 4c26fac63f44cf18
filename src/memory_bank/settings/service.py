"""Settings of the service."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from memory_bank.settings.base import Float, Int


class ServiceSettings(BaseModel):
    """The HTTP service: where it listens, what it forwards to, what it keeps and allows."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    host: str = Field(
        default="127.0.0.1", min_length=1, description="address to listen on; without keys loopback only"
    )
    port: Int = Field(default=8767, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    workers: Int = Field(default=1, ge=1, le=64, description="processes that serve side by side")
    database: str = Field(
        default="", description="file name or database URL; empty: bank.db in the user's data directory"
    )
    upstream: str = Field(
        default="", description="base URL of the model's API; empty: OPENAI_BASE_URL, else OpenAI's own"
    )
    upstream_timeout: Float = Field(
        default=600.0, gt=0, le=86_400, description="seconds without a byte after which upstream is given up"
    )
    strategy: str = Field(
        default="", description="key of the strategy that rebuilds contexts; empty: default_strategy"
    )
    memory_timeout: Float = Field(
        default=5.0, gt=0, le=600, description="seconds after which a request goes on without memory"
    )
    inject_tools: bool = Field(
        default=False,
        description="offer search_memory and get_record to the agent and answer them in the proxy",
    )
    redact: tuple[str, ...] = Field(
        default=(), description="regular expressions; what they match is never stored"
    )
    redact_secrets: bool = Field(
        default=True, description="keys, tokens and passwords of known forms are never stored"
    )
    max_body_bytes: Int = Field(default=64 * 2**20, ge=1024, description="longest request body accepted")
    requests_per_minute: Int = Field(
        default=0, ge=0, description="of one key, or without keys of all; 0: no limit"
    )
    sessions_kept: Int = Field(default=256, ge=1, description="sessions held in memory by one worker")
    tokens_kept: Int = Field(
        default=4_000_000,
        ge=1,
        description="tokens of full histories that one worker holds (about 140 bytes each)",
    )
    steps_kept: Int = Field(
        default=100, ge=0, description="latest steps of a session whose contexts can be looked at"
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="names a client may call the service by, besides its address and loopback"
    )
    allowed_origins: tuple[str, ...] = Field(
        default=(), description="other web pages that may call it, such as https://tools.example"
    )
    log_format: Literal["text", "json"] = Field(default="text", description="lines for people or programs")
    shutdown_timeout: Float = Field(
        default=10.0, ge=0, le=600, description="seconds that open requests and jobs have when it ends"
    )

    @field_validator("redact")
    @classmethod
    def _expressions(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for expression in value:
            try:
                re.compile(expression)
            except re.error as e:
                raise ValueError(f"{expression!r} is no regular expression ({e})") from None
        return value
