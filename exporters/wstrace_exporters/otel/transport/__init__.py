"""How telemetry leaves the process: batches, encoding, endpoints and retries."""
