# The recipes that people run; CI runs the same commands through .ci/run.

# List the recipes.
default:
    @just --list

# Run the server with its data in ./data.
run *args:
    cargo run --release -- {{args}}

# Everything that CI runs.
ci:
    .ci/run

# Formatting and lints, quickly.
check:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- -D warnings

# All tests.
test:
    cargo test --workspace

# Long randomised simulations: many more seeds than the normal tests, and all mutations.
soak *args:
    .ci/soak {{args}}

# The public conformance suite against a server of this tree.
audit:
    .ci/audit debug

# Compare with git http-backend behind nginx in one run; see docs/benchmarks.md.
git-compare *args:
    bench/git-compare {{args}}

# A Debian package of the release build, in target/debian.
deb *args:
    deploy/debian/build {{args}}

# Licences, sources and use of dependencies.
dependencies:
    .ci/dependencies

# Licences and advisories of dependencies (needs cargo-deny).
deny:
    cargo deny check

# Compare with an independent relay in one run; see docs/benchmarks.md.
compare *args:
    cargo build --release -p graspd
    cargo run --release -p grasp-bench --features compare -- compare --graspd target/release/graspd {{args}}

alias settings := reference

# The references of settings, commands and metrics in docs/, generated from the code.
reference:
    cargo run --quiet -- config --reference > docs/settings.md
    cargo run --quiet -- commands --reference > docs/commands.md
    cargo run --quiet -- metrics --reference > docs/metrics.md
