FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY switchboard ./switchboard
RUN pip install --no-cache-dir build && python -m build --wheel --outdir /dist .

FROM python:3.12-slim
# periodiq handles no SIGTERM, and Dramatiq's parent must not be PID 1: run with an init (`init: true` in Compose).
RUN useradd --create-home --uid 10001 switchboard
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(ls /dist/*.whl)[rabbitmq,web,prometheus,opentelemetry]" && rm -rf /dist
USER switchboard
WORKDIR /home/switchboard
CMD ["dramatiq", "switchboard.actors"]
