"""The sender of spans with OTLP over HTTP. Imports OpenTelemetry, which is optional."""

import logging
from collections.abc import Sequence
from datetime import datetime

import requests
from google.protobuf.message import DecodeError
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

from rolecall import __version__
from rolecall.master.job_trace import CollectorAnswer, TraceSpan, span_id, trace_id

_BATCH = 512
_LATEST = 2**63 - 1
_TOO_MANY = 429
_LIBRARY = logging.getLogger("opentelemetry")


class OtlpSender:
    """Sends spans to `<endpoint>/v1/traces`. Blocks: call it in a thread.

    The library reads its other variables, such as `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_EXPORTER_OTLP_TIMEOUT`.
    """

    def __init__(self, endpoint: str) -> None:
        session = requests.Session()
        session.hooks["response"].append(self._keep)
        self._exporter = OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces", session=session)
        self._response: requests.Response | None = None
        given = Resource({"service.name": "rolecall", "service.version": __version__})
        self._resource = given.merge(OTELResourceDetector().detect())
        # It logs the whole URL at each try, which can contain secrets.
        _LIBRARY.setLevel(logging.CRITICAL)

    def send(self, job: str, spans: Sequence[TraceSpan]) -> CollectorAnswer:
        """Send all spans. Stops at the first error."""
        lost = 0
        for start in range(0, len(spans), _BATCH):
            self._response = None
            result = self._exporter.export([self._span(job, one) for one in spans[start : start + _BATCH]])
            if result is not SpanExportResult.SUCCESS:
                status = None if self._response is None else self._response.status_code
                if status is None:
                    return CollectorAnswer("it can't be reached", is_away=True)
                return CollectorAnswer(f"HTTP status {status}", is_away=status >= 500 or status == _TOO_MANY)
            lost += self._rejected()
        return CollectorAnswer(lost=lost)

    def close(self) -> None:
        """End a call of `send` that waits before it retries."""
        self._exporter.shutdown()

    def _keep(self, response: requests.Response, *_: object, **__: object) -> None:
        self._response = response

    def _rejected(self) -> int:
        """The number of spans that the last response rejects, which a client must not send again."""
        if self._response is None:
            return 0
        try:
            answer = ExportTraceServiceResponse.FromString(self._response.content)
        except DecodeError:
            return 0  # Of a collector that answers with JSON.
        return answer.partial_success.rejected_spans

    def _span(self, job: str, span: TraceSpan) -> ReadableSpan:
        status = Status(StatusCode.OK if span.succeeded else StatusCode.UNSET)
        if span.error is not None:
            status = Status(StatusCode.ERROR, span.error)
        return ReadableSpan(
            span.name,
            context=_context(job, span.key),
            parent=None if span.parent is None else _context(job, span.parent),
            resource=self._resource,
            attributes=dict(span.attributes),
            events=[Event(note.name, dict(note.attributes), _nanoseconds(note.at)) for note in span.notes],
            status=status,
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
            instrumentation_scope=InstrumentationScope("rolecall", __version__),
        )


def _context(job: str, key: str) -> SpanContext:
    return SpanContext(trace_id(job), span_id(job, key), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(at: datetime) -> int:
    # A job's code can report events of any time.
    return min(max(0, int(at.timestamp() * 1_000_000) * 1000), _LATEST)
