set -e; unset PYTHONPATH
r=@CACHE@; [ -w $r ] || r=${HOME:-/tmp}/.cache/scaler; mkdir -p $r
d=$r/@DIGEST@
exec 9>$d.lock; flock 9
if [ ! -e $d/ready ]; then
rm -rf $d $d.uv
q() { env -u @CREDENTIAL@ "$@"; }
i() { q uv pip install -q -p $d/bin/python "$@"; }
PATH=$PATH:$d.uv/bin
command -v uv >/dev/null || q python3 -m pip install -q --no-deps -t $d.uv uv ||
curl -LsSf https://astral.sh/uv/install.sh | q env UV_UNMANAGED_INSTALL=$d.uv/bin sh
q uv venv -q -p @PYTHON@ $d
i @BOTO3@
q $d/bin/python -c 'import boto3,sys
s=boto3.client("s3","@REGION@")
for n in "@WHEEL@","@REQUIREMENTS@":s.download_file("@BUCKET@","@KEY@"+n,sys.argv[1]+"/"+n)' $d
i -r $d/@REQUIREMENTS@; i --no-deps $d/@WHEEL@
rm -rf $d.uv; touch $d/ready
fi
exec 9>&-
exec $d/bin/python -P -m "$0" "$@"
