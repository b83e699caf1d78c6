# What is run often; `just` lists it. What needs logic is in xtask.

default:
    @just --list

# Format everything
fmt:
    cargo fmt --all

# Formatting, clippy, and the checks of the tree
lint:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
    cargo run -q -p xtask --locked -- check

# The tests that start no sandbox
test *ARGS:
    cargo nextest run --workspace --all-features --locked --profile fast {{ARGS}}

# The tests that drive real sandboxes (root)
privileged *ARGS:
    cargo nextest run --workspace --all-features --locked --profile slow {{ARGS}}

# The quickstart on the shipped example
quickstart:
    cargo run --release --locked -- quickstart

# The benchmark table
bench:
    cargo run --release --locked -- bench

# Write golden files anew; review the diff
bless:
    ESF_BLESS=1 cargo nextest run --workspace --all-features --locked --profile fast

# What CI does
ci:
    bash .ci/run
