# The serving image: every stage, chosen by the command. KServe, torch and FAISS; no Feast.
#   docker build -f docker/serving.Dockerfile -t recgraph/serving:0.1.0 .
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS build
# torch's index: the CPU build by default; for CUDA 12.8 .../whl/cu128. Empty: the ordinary index.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /build
RUN python -m venv /app/venv
COPY constraints.txt ./
# torch alone comes from there: every other package would be looked for in that index too.
RUN --mount=type=cache,target=/root/.cache/pip \
    /app/venv/bin/pip install ${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}} --retries 1 --no-deps -c constraints.txt torch
COPY pyproject.toml docker/requirements.py ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python requirements.py serving > requirements.txt && /app/venv/bin/pip install -c constraints.txt -r requirements.txt
COPY LICENSE ./
RUN touch README.md
COPY src src
COPY predictors predictors
COPY transformers transformers
RUN --mount=type=cache,target=/root/.cache/pip \
    /app/venv/bin/pip install --no-deps .
COPY docker/prune.sh ./
RUN sh prune.sh /app/venv

FROM ${BASE}
RUN echo 'recgraph:x:10001:10001::/tmp:/usr/sbin/nologin' >> /etc/passwd
COPY --from=build /app/venv /app/venv
ENV PATH=/app/venv/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PYTHONSAFEPATH=1
USER 10001:10001
WORKDIR /tmp
EXPOSE 8080 8081
ENTRYPOINT ["python", "-P", "-m"]
CMD ["recgraph_predictors.entry"]
