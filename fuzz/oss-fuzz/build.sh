#!/bin/bash -eu
# Builds the fuzz targets in the image of OSS-Fuzz or ClusterFuzzLite. They are one program: it selects the
# target by the name of its file.
cd "$SRC/pathproof"
if [ "$SANITIZER" != coverage ]; then
    # Coverage for libFuzzer, with the flags of xtask/src/fuzz.rs: a test there compares them.
    export RUSTFLAGS="$RUSTFLAGS --cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1"
fi
machine=x86_64-unknown-linux-gnu
cargo build --locked --package pathproof-fuzz --bin fuzz --features libfuzzer --profile fuzz --target "$machine"
for folder in fuzz/corpus/*; do
    target=$(basename "$folder")
    cp "target/$machine/fuzz/fuzz" "$OUT/$target"
    zip --quiet --junk-paths "$OUT/${target}_seed_corpus.zip" "$folder"/*
    printf '[libfuzzer]\nmax_len = 16384\ntimeout = 20\n' >"$OUT/$target.options"
done
