#!/bin/sh
# Links as rustc asks, but position-independent: for arm64 rustc knows static programs alone as
# position-dependent (-static -no-pie), and gcc links both. STATIC_PIE_COMPILER is the one to
# call.
for argument do
    shift
    case $argument in
    -static | -no-pie) ;;
    *) set -- "$@" "$argument" ;;
    esac
done
exec "${STATIC_PIE_COMPILER:?names the C compiler}" -static-pie "$@"
