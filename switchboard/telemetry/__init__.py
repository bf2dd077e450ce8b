"""What shows what goes on: metrics, traces, Sentry, logs, and the pulse that health is judged by."""
