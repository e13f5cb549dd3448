#!/bin/bash
# Breaks each promise of the core on purpose, and expects the simulator to notice. A mutation that survives is a failure,
# and so is one whose original text is no longer in the core. Works on a copy; must never change the tree.
#
# One build has all mutations, each behind a switch that is read once (SIM_MUTATION=N): the build is paid for once, and each
# mutation costs one run. mutations/*.txt has any number of
#   mutation: NAME
#   breaks: THE PROMISE
#   file: PATH
#   run: ARGUMENTS (optional: of the simulator; the scenario that shows a mutation which worlds show seldom)
#   --- original
#   whole statements or one expression, exactly once in the file
#   --- changed
#   what stands there instead; or, where it says $ON, the whole text, with $ON as the condition
#   --- end
. "$(dirname "$(readlink -f "$0")")/../common/start.sh"
set -euo pipefail
here=$(cd "$(dirname "$(readlink -f "$0")")" && pwd)
root=$(cd "$here/../.." && pwd)
steps=${SIM_MUTATION_STEPS:-150000}
# Scenarios that take longer than all others; a mutation that needs one names it.
long=(--without order_when_use_is_skewed --without end_when_thousands_of_leases)
# In a sample the core as it is runs for so many steps: the other tests of the same run have it run for more.
sample_steps=30000

usage() {
    cat <<END
usage: tests/sim/mutations.sh [--sample N | --only NAME] [--list]
  --sample N   N mutations, spread evenly over the list; each commit has a sample of its own
  --only NAME  the mutations whose name contains NAME
  --list       prints the names and what each mutation breaks
Without options all of them run. Ends with "N passed, N failed".
SIM_MUTATION_STEPS: most steps of one run (default 150000).
END
}

only='' sample='' list=''
while (($#)); do
    case $1 in
        --only) only=${2:?--only needs a name}; shift 2 ;;
        --sample) sample=${2:?--sample needs a number}; shift 2 ;;
        --list) list=yes; shift ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; exit 2 ;;
    esac
done
[[ $sample =~ ^([1-9][0-9]*)?$ ]] || { usage >&2; exit 2; }

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

# The indices of the mutations that were asked for.
choose() {
    local at total=${#names[@]} id first
    if [[ $sample ]] && ((sample < total)); then
        # A clone without its history has the commit, too; a source archive has neither, and takes the day.
        id=$(git -C "$root" rev-parse --short=7 HEAD 2>/dev/null) || id=$(date +%Y%m%d)
        first=$((16#$id % total))
        echo "a sample of $sample of $total, by $id; to repeat one: tests/sim/mutations.sh --only NAME" >&2
        for ((at = 0; at < sample; at++)); do echo $(((first + at * total) / sample)); done
        return
    fi
    for at in "${!names[@]}"; do [[ ${names[at]} != *"$only"* ]] || echo "$at"; done
}

target=$(readlink -m "${CARGO_TARGET_DIR:-$root/target}")
tree=$target/mutations
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Copies what the simulator needs, with the mutations in it. The crates are in a folder of their own there: cargo knows a
# crate by its place in the workspace, and would take these for the real ones, which have the same target directory.
# A file that is as it was keeps its time: then cargo does not build it again.
copy() {
    local new=$tree.new crates=$tree.new/mutated file
    rm -rf "$new" && mkdir -p "$crates/broker" "$crates/libclient" "$crates/tests"
    cp "$root/Cargo.lock" "$new/"
    sed -e '/^members = \[/,/^\]/c members = ["mutated/broker/core", "mutated/libclient/protocol"]' \
        -e 's|path = "|path = "mutated/|' "$root/Cargo.toml" >"$new/Cargo.toml"
    cp -a "$root/broker/core" "$crates/broker/"
    cp -a "$root/libclient/protocol" "$crates/libclient/"
    cp -a "$root/tests/sim" "$crates/tests/"
    apply_all "$crates"
    (cd "$new" && find . -type f) | while IFS= read -r file; do
        if cmp -s "$new/$file" "$tree/$file"; then touch -r "$tree/$file" "$new/$file"; fi
    done
    rm -rf "$tree" && mv "$new" "$tree"
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

declare -A text=() broken=()
# Puts every mutation into the files below a directory.
apply_all() {
    local at file content rest new
    for at in "${!names[@]}"; do
        file=${files[at]}
        [[ -f $1/$file ]] || { broken[$at]="there is no file $file"; continue; }
        [[ -v text[$file] ]] || text[$file]=$(<"$1/$file")
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
    for file in "${!text[@]}"; do printf '%s\n' "${text[$file]}" >"$1/$file"; done
    cat >>"$1/broker/core/src/lib.rs" <<'END'

/// Whether this mutation is switched on.
pub(crate) fn mutated(number: usize) -> bool {
    static ON: std::sync::LazyLock<Option<usize>> =
        std::sync::LazyLock::new(|| std::env::var("SIM_MUTATION").ok()?.parse().ok());
    *ON == Some(number)
}
END
}

# In the workspace's own target directory, with its profile: the dependencies have been built for the other tests.
build() {
    if ! (cd "$tree" && CARGO_TARGET_DIR=$target cargo test --quiet -p fdbroker-core --test sim --no-run \
        --message-format=json-render-diagnostics) >"$out/built.json" 2>"$out/build.log"; then
        tail -60 "$out/build.log"
        echo "mutations: the mutated core does not build: mend the mutation named above"
        echo "0 passed, ${#chosen[@]} failed"
        exit 1
    fi
    program=$(sed -n 's/.*"executable":"\([^"]*\/sim-[^"]*\)".*/\1/p' "$out/built.json" | tail -1)
}

# Runs one mutation, or with -1 the core as it is. A run that takes ten times as long as it should has hung.
run_one() {
    local at=$1 rc=0 run=(--steps "$steps" "${long[@]}")
    [[ $at != -1 || -z $sample ]] || run[1]=$sample_steps
    [[ $at == -1 || -z ${runs[at]} ]] || read -ra run <<<"${runs[at]}"
    SIM_MUTATION=$at timeout 600 "$program" "${run[@]}" --threads 1 --fail-fast >"$out/$at" 2>&1 || rc=$?
    echo "$rc" >"$out/$at.rc"
}

passed=0 failed=0
report() {
    local at=$1 rc why
    if [[ -v broken[$at] ]]; then
        failed=$((failed + 1))
        printf 'STALE     %-42s %s\n' "${names[at]}" "${broken[$at]}"
        return
    fi
    rc=$(<"$out/$at.rc")
    why=$(sed -n 's/^  violated: //p' "$out/$at" | head -1)
    if [[ $rc == 1 && $why ]]; then
        passed=$((passed + 1))
        printf 'caught    %-42s %s\n' "${names[at]}" "${why:0:110}"
    else
        failed=$((failed + 1))
        printf 'SURVIVED  %-42s breaks %s (exit %s)\n' "${names[at]}" "${breaks[at]}" "$rc"
    fi
}

mapfile -t chosen < <(choose)
mkdir -p "$target"
copy
build
for at in -1 "${chosen[@]}"; do
    [[ ! -v broken[$at] ]] || continue
    while (($(jobs -rp | wc -l) >= $(nproc))); do wait -n || true; done
    run_one "$at" &
done
wait
if [[ $(<"$out/-1.rc") != 0 ]]; then
    tail -20 "$out/-1"
    echo "mutations: the core without mutations does not pass, so that nothing is shown by the mutations"
    echo "0 passed, 1 failed"
    exit 1
fi
for at in "${chosen[@]}"; do report "$at"; done
echo "$passed passed, $failed failed"
((failed == 0))
