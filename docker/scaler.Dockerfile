# The image of scheduler, object storage, web page and whole clusters: every command of Scaler. Build it from the repository:
#
#     docker build -f docker/scaler.Dockerfile --build-arg PYTHON_VERSION=3.12 --build-arg REQUIREMENTS="numpy==2.1.3" -t scaler:1 .
#
# Its workers are those of scaler_cluster and baremetal_native. Managers of clouds start the smaller image of worker.Dockerfile.

ARG PYTHON_VERSION=3.11

FROM public.ecr.aws/docker/library/python:${PYTHON_VERSION}-slim AS build
COPY pyproject.toml README.md LICENSE /source/
COPY scaler /source/scaler
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM public.ecr.aws/docker/library/python:${PYTHON_VERSION}-slim
ARG REQUIREMENTS=""
# Which of pip's extras it has, by docs/guide.md.
ARG EXTRAS="top,aws,kubernetes,uvloop"
COPY --from=build /wheels /wheels
RUN wheel=$(echo /wheels/*.whl) && pip install --no-cache-dir "$wheel[$EXTRAS]" ${REQUIREMENTS} && rm -r /wheels
# Mounted keys and state must belong to this uid.
RUN useradd --create-home --uid 1000 scaler
USER scaler
WORKDIR /home/scaler
# Scheduler, object storage, monitors; the web page
EXPOSE 8516 8517 8518 50001
CMD ["scaler", "--help"]
