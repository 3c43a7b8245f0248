# On a CPU: docker build -t pipeline . && docker run --rm -v "$PWD:/work" pipeline run /src/workflows/quickstart.py
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
COPY . /src
# --build-arg PIP_EXTRA_INDEX_URL=...: an index with torch's builds for CPUs, a tenth of the size of those for GPUs.
ARG PIP_EXTRA_INDEX_URL
RUN UV_NO_CACHE=1 make -C /src .venv/core
ENV PATH=/src/.venv/bin:$PATH
WORKDIR /work
ENTRYPOINT ["pipeline"]
CMD ["--help"]
