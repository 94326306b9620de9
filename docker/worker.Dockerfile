# A worker image for the worker managers aws_raw_ecs, aws_hpc, and kubernetes. Build it from a checkout:
#
#     docker build -f docker/worker.Dockerfile --build-arg PYTHON_VERSION=3.12 \
#         --build-arg REQUIREMENTS="cloudpickle==3.1.1 numpy==2.1.3" -t scaler-worker:1 .
#
# Clients and workers must have the same minor version of Python, and should have the same version of cloudpickle. A worker
# reports its versions when it connects. Workers also need the packages that your functions import.

ARG PYTHON_VERSION=3.11

FROM public.ecr.aws/docker/library/python:${PYTHON_VERSION}-slim AS build
COPY pyproject.toml README.md LICENSE /source/
COPY scaler /source/scaler
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM public.ecr.aws/docker/library/python:${PYTHON_VERSION}-slim
ARG REQUIREMENTS=""
COPY --from=build /wheels /wheels
# Scaler without the requirements of servers. aws: for aws_hpc jobs, which use S3. uvloop: for event_loop = "uvloop".
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && pip install --no-cache-dir packaging \
    && python -m scaler.worker_manager.wheel worker aws uvloop > /wheels/requirements.txt \
    && pip install --no-cache-dir -r /wheels/requirements.txt ${REQUIREMENTS} && rm -r /wheels
RUN useradd --create-home worker
USER worker
WORKDIR /home/worker
# The manager sets SCALER_WORKER_CONFIG, which contains the configuration.
# -P: files in the working directory must not shadow Scaler's modules.
CMD ["python", "-P", "-m", "scaler.worker"]
