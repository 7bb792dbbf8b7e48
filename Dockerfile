# fdgsec on a CPU: docker build -t fdgsec . && docker run --rm -v "$PWD/runs:/home/fdgsec/runs" fdgsec attack ccst-overall
# The base is pinned by tag; a release pins it by digest (RELEASING.md).
FROM python:3.11.14-slim-bookworm AS build
WORKDIR /source
COPY requirements/run.txt requirements/run.txt
RUN python -m venv /opt/fdgsec \
 && /opt/fdgsec/bin/pip install --no-cache-dir --require-hashes -r requirements/run.txt
COPY . .
RUN /opt/fdgsec/bin/pip install --no-cache-dir --no-deps --no-build-isolation .

FROM python:3.11.14-slim-bookworm
RUN useradd --create-home --uid 10001 fdgsec
COPY --from=build /opt/fdgsec /opt/fdgsec
ENV PATH=/opt/fdgsec/bin:$PATH MPLBACKEND=Agg FDGSEC_DATA=/data FDGSEC_WEIGHTS=/weights
USER fdgsec
WORKDIR /home/fdgsec
ENTRYPOINT ["fdgsec"]
CMD ["--help"]
