# On a CPU: docker build -t pipeline . && docker run --rm -v "$PWD:/work" pipeline run /src/workflows/quickstart.py
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
COPY . /src
# The index with torch's builds for CPUs, which are a tenth of the size of those for GPUs.
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN UV_NO_CACHE=1 make -C /src .venv/core
ENV PATH=/src/.venv/bin:$PATH
WORKDIR /work
ENTRYPOINT ["pipeline"]
CMD ["--help"]
