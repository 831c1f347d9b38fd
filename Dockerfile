FROM python:3.13-slim@sha256:7c61056e61ac89e852de05f3dc6fa51a6dd2181797bceed46aa725dd7cb2cd3b AS base

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# Use a fixed user id, so that a host or a cluster can set permissions for it. The user owns no files: the shop writes
# only to /tmp.
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin shop

WORKDIR /app

# The image `load` has Locust and local servers, to send bursts to a shop. They are half of the size of all packages.
FROM base AS load
# Install only wheels: the image has no compiler, so a missing wheel should be reported as missing.
COPY requirements.txt .
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
    --only-binary=:all: --require-hashes -r requirements.txt
COPY . .
USER 10001:10001

# The image `shop` has only the shop. Postgres and Valkey run elsewhere.
FROM base AS shop
COPY requirements-image.txt requirements-trace.txt ./
# To add the packages for TRACES: docker build --build-arg ALSO="-r requirements-trace.txt"
ARG ALSO=""
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
    --only-binary=:all: --require-hashes -r requirements-image.txt $ALSO
COPY . .
USER 10001:10001
EXPOSE 8000
CMD ["python", "manage.py", "serve", "--host", "0.0.0.0", "--port", "8000"]
