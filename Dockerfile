# The service in a container: `docker build -t memory-bank .`; see docs/operations.md.
# Its port is open beyond the container, so it starts only with a key in its database:
#   docker run --rm -v memory-bank:/data memory-bank memory-bank keys create --operator me
#   docker run -p 127.0.0.1:8767:8767 -v memory-bank:/data -e OPENAI_API_KEY memory-bank

# Another base, or this one by its digest: --build-arg PYTHON=python:3.11-slim@sha256:…
ARG PYTHON=python:3.11-slim

FROM ${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python -m venv /opt/memory-bank
COPY requirements-docker.txt ./
RUN /opt/memory-bank/bin/pip install --require-hashes -r requirements-docker.txt
COPY pyproject.toml README.md LICENSE config.toml ./
COPY prompts prompts
COPY examples examples
COPY src src
RUN /opt/memory-bank/bin/pip install --no-deps --no-build-isolation .

FROM ${PYTHON}
ENV PATH=/opt/memory-bank/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    XDG_DATA_HOME=/data \
    MEMORY_BANK_SERVICE__HOST=0.0.0.0
RUN useradd --uid 10001 --home-dir /data --create-home --shell /usr/sbin/nologin memory-bank
COPY --from=build /opt/memory-bank /opt/memory-bank
USER 10001
WORKDIR /data
VOLUME /data
EXPOSE 8767
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:%s/health?live' % os.environ.get('MEMORY_BANK_SERVICE__PORT', '8767'), timeout=4)"]
CMD ["memory-bank", "serve"]
