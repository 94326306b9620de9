# The image of workers in containers, for the worker managers aws_raw_ecs, aws_hpc and kubernetes. Build it from the repository:
#
#     docker build -f docker/worker.Dockerfile --build-arg PYTHON_VERSION=3.12 \
#         --build-arg REQUIREMENTS="cloudpickle==3.1.1 numpy==2.1.3" -t scaler-worker:1 .
#
# Clients and workers must have the same Python (3.x) and should have the same cloudpickle, which a worker says when it
# connects; and workers need whatever packages your functions import.

ARG PYTHON_VERSION=3.11

FROM public.ecr.aws/docker/library/python:${PYTHON_VERSION}-slim AS build
COPY pyproject.toml README.md LICENSE /source/
COPY scaler /source/scaler
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM public.ecr.aws/docker/library/python:${PYTHON_VERSION}-slim
ARG REQUIREMENTS=""
COPY --from=build /wheels /wheels
# The package without what only servers need. aws: a job of aws_hpc talks to S3. uvloop: for event_loop = "uvloop".
RUN pip install --no-cache-dir --no-deps /wheels/*.whl && pip install --no-cache-dir packaging \
    && python -m scaler.worker_manager.wheel worker aws uvloop > /wheels/requirements.txt \
    && pip install --no-cache-dir -r /wheels/requirements.txt ${REQUIREMENTS} && rm -r /wheels
RUN useradd --create-home worker
USER worker
WORKDIR /home/worker
# What it needs to know comes in SCALER_WORKER_CONFIG, which its manager sets.
# -P: a file of the working directory must not stand in for one of ours.
CMD ["python", "-P", "-m", "scaler.worker"]
