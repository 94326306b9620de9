# An image with all Scaler commands, for schedulers, object storages, web pages, and whole clusters. Build it from a checkout:
#
#     docker build -f docker/scaler.Dockerfile --build-arg PYTHON_VERSION=3.12 --build-arg REQUIREMENTS="numpy==2.1.3" -t scaler:1 .
#
# It runs the workers of scaler_cluster and baremetal_native. Cloud managers use the smaller image from worker.Dockerfile.

ARG PYTHON_VERSION=3.11

FROM public.ecr.aws/docker/library/python:${PYTHON_VERSION}-slim AS build
COPY pyproject.toml README.md LICENSE /source/
COPY scaler /source/scaler
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM public.ecr.aws/docker/library/python:${PYTHON_VERSION}-slim
ARG REQUIREMENTS=""
# Extras to install. docs/guide.md lists them.
ARG EXTRAS="top,aws,kubernetes,uvloop"
COPY --from=build /wheels /wheels
RUN wheel=$(echo /wheels/*.whl) && pip install --no-cache-dir "$wheel[$EXTRAS]" ${REQUIREMENTS} && rm -r /wheels
# Mounted keys and state must belong to this uid.
RUN useradd --create-home --uid 1000 scaler
USER scaler
WORKDIR /home/scaler
# Scheduler, object storage, monitors, web page
EXPOSE 8516 8517 8518 50001
CMD ["scaler", "--help"]
