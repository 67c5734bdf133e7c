"""How telemetry leaves the process: by OpenTelemetry's SDK, with losses counted and the end bounded in time."""
