# For CPUs. In a folder with your data and workflows:
#   docker build -t pipeline CLONE
#   docker run --rm --init -v "$PWD:/work" pipeline run /src/workflows/quickstart.py
# --init passes on signals as a terminal does: the process with number 1 would ignore a second Ctrl-C or SIGTERM.
# With `docker run --network host` a browser on this machine can open the links that a run prints. `docker stop -t 600`
# leaves a run the time for its last commit. Kernels are compiled in each new container, which takes about a minute; to
# keep them, add -v pipeline-kernels:/src/pipeline/kernels/__pycache__
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
COPY . /src
# --build-arg PIP_EXTRA_INDEX_URL=...: an index with torch's builds for CPUs, a tenth of the size of those for GPUs.
ARG PIP_EXTRA_INDEX_URL
# --build-arg EXTRAS=export,serve: for export to ONNX and the server (`docker run -p 8000:8000`, `serve --host 0.0.0.0`).
ARG EXTRAS
ENV PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1
RUN make -C /src .venv/core \
    && if [ -n "$EXTRAS" ]; then /src/.venv/bin/python -m pip install -c /src/constraints.txt -e "/src[$EXTRAS]"; fi
ENV PATH=/src/.venv/bin:$PATH
WORKDIR /work
ENTRYPOINT ["pipeline"]
CMD ["--help"]
