FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1

# A fixed number, so that a host or a cluster can tell who it is. It owns nothing: the shop writes to /tmp alone.
RUN useradd --uid 10001 --user-group --no-create-home --shell /usr/sbin/nologin shop

WORKDIR /app
# Wheels only: the image has no compiler, and a missing wheel should say so instead of failing in one.
COPY requirements.txt .
RUN pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore \
    --only-binary=:all: --require-hashes -r requirements.txt
COPY . .

USER 10001:10001
EXPOSE 8000
CMD ["python", "manage.py", "serve", "--host", "0.0.0.0", "--port", "8000"]
