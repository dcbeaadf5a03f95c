# Container image of graspd. All data is below /data.
#
#   docker build --build-arg NGIT_BUILD_REVISION="$(git rev-parse --short=12 HEAD)" -t graspd .
#   docker run -d --name graspd -e NGIT_DOMAIN=code.example -p 127.0.0.1:7334:7334 -v graspd:/data graspd
#
# deploy/compose.yml adds a reverse proxy for TLS.

FROM rust:1-bookworm AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY crates crates
# `graspd check` contains the example proxy configurations.
COPY deploy deploy
# The commit in the metric `ngit_build_info`: the build has no access to the git history.
ARG NGIT_BUILD_REVISION
RUN cargo build --release --locked --package graspd

FROM debian:bookworm-slim
# graspd runs git (2.39 or newer, which this Debian release has), and the health check runs curl. graspd contains its own
# list of certificate authorities; git and curl use that of the system.
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates curl git \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --system --uid 7334 --user-group --no-create-home --shell /usr/sbin/nologin graspd \
    && install -d -o graspd -g graspd -m 700 /data
COPY --from=build /src/target/release/graspd /usr/local/bin/graspd
USER graspd
WORKDIR /data
ENV NGIT_BIND_ADDRESS=0.0.0.0:7334 \
    NGIT_GIT_DATA_PATH=/data/git \
    NGIT_RELAY_DATA_PATH=/data/relay \
    NO_COLOR=1
VOLUME /data
EXPOSE 7334
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s --retries=3 \
    CMD ["curl", "--fail", "--silent", "--output", "/dev/null", "http://127.0.0.1:7334/healthz"]
ENTRYPOINT ["/usr/local/bin/graspd"]
