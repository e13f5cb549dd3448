#!/bin/bash
# Breaks each promise of the core on purpose, and expects the simulator to say so: a mutation that survives, or whose
# text is no longer there, is a failure. Works on a copy; must never change the tree.
#
# All mutations go into one build, each behind a switch that is read once (SIM_MUTATION=N), so that a build is paid
# for once and each costs a run. Format of mutations/*.txt, as often as wanted:
#   mutation: NAME / breaks: THE PROMISE / file: PATH / run: ARGUMENTS (of the simulator, for what shows too rarely)
#   --- original (whole statements or one expression; must be there exactly once)
#   --- changed  (instead; or, where it says $ON, the whole text with that as the condition)
#   --- end
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/../.." && pwd)
steps=${SIM_MUTATION_STEPS:-150000}
jobs=$(nproc)
only=''

usage() {
    cat <<END
usage: tests/sim/mutations.sh [--only NAME] [--list] [--keep DIR]
  --only NAME  those whose name contains it
  --list       names and what they break
  --keep DIR   build there, and leave it: the next time is faster
Ends with "N passed, N failed". SIM_MUTATION_STEPS: most steps of one (default 150000).
END
}

list='' keep=''
while (($#)); do
    case $1 in
        --only) only=${2:?--only needs a name}; shift 2 ;;
        --keep) keep=${2:?--keep needs a directory}; shift 2 ;;
        --list) list=yes; shift ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done

names=() breaks=() files=() runs=() originals=() changes=()
read_list() {
    local line part='' original='' changed='' name='' promise='' file='' run=''
    while IFS= read -r line; do
        case $line in
            '--- original') part=original original='' changed='' ;;
            '--- changed') part=changed ;;
            '--- end')
                names+=("$name") breaks+=("$promise") files+=("$file") runs+=("$run")
                originals+=("${original%$'\n'}") changes+=("${changed%$'\n'}")
                part='' run=''
                ;;
            *)
                case $part in
                    original) original+=$line$'\n' ;;
                    changed) changed+=$line$'\n' ;;
                    *)
                        case $line in
                            'mutation: '*) name=${line#mutation: } ;;
                            'breaks: '*) promise=${line#breaks: } ;;
                            'file: '*) file=${line#file: } ;;
                            'run: '*) run=${line#run: } ;;
                        esac
                        ;;
                esac
                ;;
        esac
    done < <(cat "$here"/mutations/*.txt)
}

read_list
if [[ $list ]]; then
    for at in "${!names[@]}"; do printf '%-42s %s\n' "${names[at]}" "${breaks[at]}"; done
    exit 0
fi

work=${keep:-$(mktemp -d)}
mkdir -p "$work"
[[ $keep ]] || trap 'rm -rf "$work"' EXIT

# What the simulator needs, and no more; the manifest's other members are left out.
copy() {
    rm -rf "$work/tree.new" && mkdir -p "$work/tree.new/broker" "$work/tree.new/libclient" "$work/tree.new/tests"
    cp "$root/Cargo.lock" "$work/tree.new/"
    sed '/^members = \[/,/^\]/c members = ["broker/core", "libclient/protocol"]' "$root/Cargo.toml" >"$work/tree.new/Cargo.toml"
    cp -a "$root/broker/core" "$work/tree.new/broker/"
    cp -a "$root/libclient/protocol" "$work/tree.new/libclient/"
    cp -a "$root/tests/sim" "$work/tree.new/tests/"
    rm -rf "$work/tree" && mv "$work/tree.new" "$work/tree"
}

# The mutation behind its switch, in place of the original.
switched() {
    local original=$1 changed=$2 on=$3
    if [[ $changed == *'$ON'* ]]; then
        printf '%s' "${changed//\$ON/$on}"
    elif [[ $original == *[\;\}] ]]; then
        printf 'if %s { %s } else { %s }' "$on" "$changed" "$original"
    else
        printf '(if %s { %s } else { %s })' "$on" "$changed" "$original"
    fi
}

passed=0 failed=0
declare -A text=() broken=()
apply_all() {
    local at file content rest new
    for at in "${!names[@]}"; do
        file=${files[at]}
        [[ -f $root/$file ]] || { broken[$at]="no file $file"; continue; }
        [[ -v text[$file] ]] || text[$file]=$(<"$work/tree/$file")
        content=${text[$file]}
        rest=${content#*"${originals[at]}"}
        if [[ $rest == "$content" ]]; then
            broken[$at]="its text is not in $file"
        elif [[ $rest == *"${originals[at]}"* ]]; then
            broken[$at]="its text is in $file more than once"
        else
            new=$(switched "${originals[at]}" "${changes[at]}" "crate::mutated($at)")
            text[$file]=${content%%"${originals[at]}"*}$new$rest
        fi
    done
    for file in "${!text[@]}"; do printf '%s\n' "${text[$file]}" >"$work/tree/$file"; done
    cat >>"$work/tree/broker/core/src/lib.rs" <<'END'

/// Whether this mutation is switched on.
pub(crate) fn mutated(number: usize) -> bool {
    static ON: std::sync::LazyLock<Option<usize>> =
        std::sync::LazyLock::new(|| std::env::var("SIM_MUTATION").ok()?.parse().ok());
    *ON == Some(number)
}
END
}

build() {
    # Little optimisation: the build is most of the time. Overflow checks as in a release.
    export CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_DEBUG=0
    export CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16
    local log=$work/build.log
    if ! (cd "$work/tree" && CARGO_TARGET_DIR=$work/target cargo test --release --quiet \
        -p fdbroker-core --test sim --no-run --message-format=json-render-diagnostics) >"$work/built.json" 2>"$log"; then
        tail -60 "$log"
        echo "mutations: the mutated core does not build: a mutation above must be mended"
        echo "0 passed, ${#names[@]} failed"
        exit 1
    fi
    program=$(sed -n 's/.*"executable":"\([^"]*\/sim-[^"]*\)".*/\1/p' "$work/built.json" | tail -1)
}

# One mutation, or none with -1. A run that takes ten times as long as it should, hangs.
run_one() {
    local at=$1 out=$work/out.$1 rc=0 run=(--steps "$steps")
    [[ $at == -1 || -z ${runs[at]} ]] || read -ra run <<<"${runs[at]}"
    SIM_MUTATION=$at timeout 600 "$program" "${run[@]}" --threads 1 --fail-fast >"$out" 2>&1 || rc=$?
    echo "$rc" >"$out.rc"
}

report() {
    local at=$1 out=$work/out.$1 rc why
    rc=$(<"$out.rc")
    why=$(sed -n 's/^  violated: //p' "$out" | head -1)
    if [[ $rc == 1 && $why ]]; then
        passed=$((passed + 1))
        printf 'caught    %-42s %s\n' "${names[at]}" "${why:0:110}"
    else
        failed=$((failed + 1))
        printf 'SURVIVED  %-42s breaks %s (exit %s)\n' "${names[at]}" "${breaks[at]}" "$rc"
    fi
}

copy
apply_all
build
run_one -1
if [[ $(<"$work/out.-1.rc") != 0 ]]; then
    tail -20 "$work/out.-1"
    echo "mutations: the core as it is does not pass: nothing can be said of its mutations"
    echo "0 passed, 1 failed"
    exit 1
fi
chosen=()
for at in "${!names[@]}"; do
    [[ ${names[at]} == *"$only"* ]] || continue
    if [[ -v broken[$at] ]]; then
        failed=$((failed + 1))
        printf 'STALE     %-42s %s\n' "${names[at]}" "${broken[$at]}"
    else
        chosen+=("$at")
    fi
done
for at in "${chosen[@]}"; do
    while (($(jobs -rp | wc -l) >= jobs)); do wait -n || true; done
    run_one "$at" &
done
wait
for at in "${chosen[@]}"; do report "$at"; done
echo "$passed passed, $failed failed"
((failed == 0))
