# One image for all roles. The first argument of the command is the role: operator, courier, replay and others.
ARG BASE=python:3.11-slim-bookworm

FROM ${BASE} AS builder
ARG VERSION=0.0.0
COPY requirements.txt /build/requirements.txt
# find and rm delete 110 MB that are never loaded: the typed API of the Kubernetes client (the operator uses its dynamic
# client) and the extension functions of CEL.
RUN python3 -m venv /opt/venv \
 && /opt/venv/bin/python -m pip install --no-cache-dir --no-compile --only-binary :all: --no-deps --require-hashes -r /build/requirements.txt \
 && /opt/venv/bin/python -m pip uninstall --yes --quiet pip setuptools \
 && find /opt/venv/lib -path '*/kubernetes/*client/api/*_api.py' -delete \
 && rm -r /opt/venv/lib/python3*/site-packages/cel_expr_python/ext
COPY operator/sbom.py /build/sbom.py
RUN /opt/venv/bin/python /build/sbom.py /build/requirements.txt ${VERSION} /usr/share/sbom/dlq-operator.cdx.json
COPY operator/deadletter /opt/deadletter/deadletter
RUN /opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv/lib /opt/deadletter

FROM ${BASE}
ARG VERSION=0.0.0
LABEL org.opencontainers.image.title="dlq-operator" \
      org.opencontainers.image.description="Dead letter queues on Kubernetes" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.url="https://deadletter.dev" \
      dev.deadletter.sbom="/usr/share/sbom/dlq-operator.cdx.json"
# Without a passwd entry, kopf fails with "getpwuid(): uid not found: 10001".
RUN echo 'deadletter:x:10001:10001:deadletter:/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'deadletter:x:10001:' >> /etc/group
COPY --from=builder /opt/venv /opt/venv
COPY --from=builder /opt/deadletter /opt/deadletter
COPY --from=builder /usr/share/sbom /usr/share/sbom
ENV PATH=/opt/venv/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONPATH=/opt/deadletter \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    DLQ_VERSION=${VERSION} \
    HOME=/tmp
WORKDIR /opt/deadletter
USER 10001:10001
ENTRYPOINT ["python", "-m", "deadletter"]
CMD ["operator"]
