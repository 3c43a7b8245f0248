# A year of nightly training in short, by a seed and without a person: bash workflows/year.sh [NIGHTS] [SEED] [FOLDER]
# Ends with exit code 1 if a row was trained on twice, not at all, or with a wrong label (see year_days.py).
set -eu
nights=${1:-60} seed=${2:-1} folder=${3:-data/year}
days=$(cd "$(dirname "$0")" && pwd)/year_days.py workflow=$(cd "$(dirname "$0")" && pwd)/year.py
python=${PYTHON:-python}

"$python" "$days" write "$folder" "$nights" "$seed"
cd "$folder"
mkdir arriving

# The job of docs/nightly.md; to take less time, it exports each twentieth night and the last.
cat > nightly.sh <<'END_OF_JOB'
set -eu
code=0
pipeline run "$1" --serial --extend arriving --known-ok || code=$?
test $code = 0 || test $code = 4 || exit $code
if [ $(($2 % 20)) = 0 ]; then
    pipeline export runs/year --commit last --out "servables/$2" --publish servables
fi
exit $code
END_OF_JOB

night=0
for came in nights/*; do
    night=$((night + 1))
    if [ -e "$came/rewind" ]; then
        # Somebody has seen that a day was trained on with wrong labels, and it comes again.
        pipeline run "$workflow" --rewind "$(cat "$came/rewind")"
    fi
    while read -r gone; do rm "arriving/$gone"; done < "$came/removed"
    mv "$came"/*.parquet arriving
    code=0
    timeout --signal=INT --kill-after=120 6h bash nightly.sh "$workflow" $((nights - night)) || code=$?
    echo "night $night: exit code $code"
    test $code = 0 || test $code = 4
done > nights.log
grep -c 'exit code 4' nights.log
ls servables

pipeline run "$workflow" --serial --out runs/perfect --set data.root=perfect --extend perfect --known-ok > /dev/null
"$python" "$days" check . "$nights" "$seed"
