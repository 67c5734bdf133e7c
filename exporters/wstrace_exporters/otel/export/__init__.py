"""A trace as OpenTelemetry metrics, logs and spans. Imports `transport`."""
