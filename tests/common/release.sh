# A test program as users' programs are built, for long runs and for figures: `release_program PACKAGE NAME` prints its path.
# To be sourced. Must never be used where programs of the dev profile do: everything below them is compiled again.

release_program() {
  local built
  built=$(cargo test --release --quiet -p "$1" --test "$2" --no-run --message-format=json)
  sed -n 's/.*"executable":"\([^"]*\/'"$2"'-[^"]*\)".*/\1/p' <<<"$built" | tail -1
}
