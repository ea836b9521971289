"""The viewer over HTTP, without a browser: who may read, what is answered, and hostile content."""

import asyncio
import gzip
import json
import re

import pytest
from aiohttp import CookieJar
from aiohttp.test_utils import TestClient, TestServer

from burnish.log.folder import dump_rollouts
from burnish.view.api import MAX_TEXT, ViewApi
from burnish.view.export import MODULES, bundle, export_page
from burnish.view.metrics import thinned
from burnish.view.runs import find_runs
from burnish.view.server import is_allowed_host, make_app, static_files
from burnish.view.token_file import changed_from

TOKEN = "the-token-of-this-test"
HOSTILE = [
    "<script>document.title='owned'</script><img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "\x1b]0;owned\x07\x1b[2J",
    "\u202egnirts desrever\u2066",
    "x" * 1_000_000,
    "\ud800",
]


def asked(folder, *requests, host="127.0.0.1:8642", cookie=True):
    """Answers (status, headers, text) to (path, headers) requests of one client."""

    async def run():
        server = TestServer(make_app(ViewApi(find_runs([folder])), TOKEN))
        async with TestClient(server, cookie_jar=CookieJar(unsafe=True)) as client:
            if cookie:
                response = await client.get(f"/open/{TOKEN}", headers={"Host": host}, allow_redirects=True)
                assert response.status == 200
            answers = []
            for path in requests:
                path, headers = path if isinstance(path, tuple) else (path, {})
                response = await client.get(path, headers={"Host": host} | headers, allow_redirects=False)
                answers.append((response.status, response.headers, (await response.read()).decode(errors="replace")))
            return answers

    return asyncio.run(run())


def values(answer):
    assert answer[0] == 200, answer[2][:500]
    return json.loads(answer[2])


def test_every_page_has_what_it_shows(run_folder):
    answers = map(
        values,
        asked(
            run_folder,
            *("/api/runs", "/api/metrics?run=0", "/api/metrics?run=0&names=critic/score/mean", "/api/health?lang=zh"),
            *("/api/steps", "/api/step?step=4", "/api/sample?step=4&row=1", "/api/tokens?step=4&row=1&start=0&count=3"),
            *("/api/tokens?step=4&row=1&part=prompt", "/api/difference?step=4&row=1", "/api/search?text=answer is 5"),
            *("/api/timeline", "/api/bars?step=4", "/api/processes?step=4", "/api/config?runs=0,0", "/api/files"),
            "/api/checks?lang=zh",
        ),
    )
    runs, names, curves, health, steps, step, sample, tokens, prompt, *rest = answers
    difference, search, timeline, bars, processes, config, files, checks = rest
    assert {one["metric"]: one["value"] for one in checks["checks"]}["actor/grad_norm"] == 1.0
    assert runs["runs"][0]["state"] == "finished" and "actor/grad_norm" in names["names"]
    assert [point[2] for point in curves["curves"]["critic/score/mean"]] == [0.25, 0.5, 0.75, 1.0]
    assert health["notes"] == ["a note"] and steps["token_steps"] == [2, 3, 4]
    assert step["samples"][1]["length"] == 7 and step["samples"][1]["tools"] == ["add"]
    assert sample["turns"][1]["latency"] == 0.25 and sample["extras"] == {"acc": True}
    assert tokens["length"] == 7 and len(tokens["texts"]) == 3 and tokens["flags"][:2] == [3, 0]
    assert {"advantages", "ratio", "entropys"} <= set(tokens["columns"]) and prompt["ids"] == [5, 6, 7]
    ratios = tokens["columns"]["ratio"]
    assert ratios[0] > 0 and ratios[1] is None, "the engine has no probability of a token that it was given"
    assert difference == {"is_known": True, "num_sampled": 7, "num_encoded": 7, "changed": []}
    assert [match["step"] for match in search["matches"]] == [4, 3, 2]
    assert timeline["steps"][-1]["seconds"]["gen"] == 1.5 and len(bars["bars"]) == 4
    assert [[kind for kind, _, _ in bar[4]] for bar in bars["bars"]] == [[0], [0, 1], [0, 1, 2], [0, 1, 2]]
    assert [row["name"] for row in processes["processes"]] == ["trainer rank 0 of 2", "trainer rank 1 of 2"]
    assert processes["processes"][0]["idle"] == pytest.approx(0.05, abs=0.01)
    seed = next(row for row in config["rows"] if row["key"] == "trainer.seed")
    assert seed["values"] == ["7", "7"] and seed["is_changed"] and files["checkpoints"][0]["is_latest"]


def test_nobody_reads_without_the_token(run_folder):
    paths = ("/", "/api/runs", "/static/app.js", "/open/wrong", "/?token=x")
    assert [status for status, _, _ in asked(run_folder, *paths, cookie=False)] == [401] * 5
    bearer = ("/api/runs", {"Authorization": f"Bearer {TOKEN}"})
    assert [status for status, _, _ in asked(run_folder, bearer, cookie=False)] == [200]


def test_other_names_for_this_machine_are_refused(run_folder):
    (answer,) = asked(
        run_folder, ("/api/runs", {"Authorization": f"Bearer {TOKEN}"}), host="evil.example", cookie=False
    )
    assert answer[0] == 403
    allowed = ["localhost", "localhost:8642", "127.0.0.1", "[::1]:8642", "[::1]", "10.0.0.3:80", "Box:1"]
    assert all(is_allowed_host(host, frozenset({"box"})) for host in allowed)
    assert not any(is_allowed_host(host) for host in ("", "evil.example:8642", "127.0.0.1.evil.example", "box"))


def test_every_answer_forbids_scripts_of_data(run_folder):
    for _, headers, _ in asked(run_folder, "/", "/api/runs", "/api/none", "/static/none"):
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff" and headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        *("/api/step?step=99", "/api/step?step=x", "/api/step", "/api/sample?step=4&row=99", "/api/runs2"),
        *("/api/tokens?step=4&row=-1", "/api/tokens?step=1&row=0", "/api/metrics?run=7", "/static/../server.py"),
        "/static/%2e%2e%2fserver.py",
    ],
)
def test_what_does_not_exist_is_not_found(run_folder, path):
    assert asked(run_folder, path)[0][0] == 404


def test_hostile_text_is_data(run_folder, tools):
    rows = [tools.record(9, 0, input=text, output=text, uid=text[:50], acc={"deep": [text[:100]]}) for text in HOSTILE]
    dump_rollouts(run_folder / "rollouts", 9, rows)
    answers = asked(run_folder, "/api/step?step=9", *(f"/api/sample?step=9&row={row}" for row in range(len(rows))))
    assert all("json" in headers["Content-Type"] for _, headers, _ in answers)
    assert len(values(answers[0])["samples"]) == len(HOSTILE) and len(answers[0][2]) < 20_000
    long = values(answers[5])["output"]
    assert (len(long["cut"]), long["length"]) == (MAX_TEXT, 1_000_000)
    assert values(answers[1])["output"] == HOSTILE[0]
    (more,) = asked(run_folder, f"/api/text?step=9&row=4&field=output&start={1_000_000 - 5}")
    assert values(more) == {"text": "xxxxx", "length": 1_000_000}


def test_the_front_end_inserts_text_only_as_text():
    for name, content in static_files().items():
        text = content.decode()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text), (
            name
        )
        assert not re.search(r"""(src|href)=["']?(https?:)?//""", text), f"{name} loads from elsewhere"


def test_the_export_is_one_file_whose_data_cannot_leave_its_element(run_folder, tmp_path, tools):
    dump_rollouts(run_folder / "rollouts", 4, [tools.record(4, row, output=HOSTILE[1]) for row in range(4)])
    page = tmp_path / "page.html"
    assert export_page(ViewApi(find_runs([run_folder])), page, num_steps=2) == page.stat().st_size
    text = page.read_text()
    assert text.count("<script") == 2 and "/static/" not in text and "alert(1)</script>" not in text
    data = json.loads(re.search(r'id="embedded">(.*?)</script>', text, re.DOTALL)[1])
    assert data["answers"]["steps?run=0"]["steps"] == [1, 4]
    assert data["answers"]["sample?row=2&run=0&step=4"]["output"] == HOSTILE[1]
    assert data["curves"]["0"]["critic/score/mean"][-1][2] == 1.0
    assert "tokens?count=512&row=3&run=0&start=0&step=4" in data["answers"]


def test_the_modules_of_the_export_share_one_scope():
    files = {name: content.decode() for name, content in static_files().items()}
    assert set(MODULES) == {name for name in files if name.endswith(".js")}
    declared = [
        name
        for module in MODULES
        for line in re.findall(
            r"^(?:export )?(?:async )?(?:const|let|class|function) (.*)", files[module], re.MULTILINE
        )
        for name in re.findall(r"^\{?\s*(\w+)", line)
    ]
    assert len(declared) > 50 and len(set(declared)) == len(declared)
    assert not re.search(r"^(import|export) ", bundle(files), re.MULTILINE)


def test_long_curves_keep_their_spikes():
    points = [(step, 0.0) for step in range(100_000)]
    points[50_123] = (50_123, 9.0)
    assert len(thinned(points)) <= 1600 and (50_123, 9.0) in thinned(points) and thinned(points)[-1] == points[-1]


def test_a_part_of_a_curve_has_more_of_its_points(tmp_path):
    lines = (f'{{"step": {step}, "data": {{"a": {step % 7}}}}}\n' for step in range(1, 5001))
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    api = ViewApi(find_runs([tmp_path]))
    whole = api.answer("metrics", {"names": "a"})["curves"]["a"]
    part = api.answer("metrics", {"names": "a", "from": "100", "to": "199"})["curves"]["a"]
    assert len(whole) < 2000 and [point[0] for point in part] == list(range(100, 200))


def test_tokens_that_would_be_encoded_otherwise():
    assert changed_from([1, 2, 3, 4], [1, 2, 3, 4]) == []
    assert changed_from([1, 2, 3, 4], [1, 9, 4]) == [1, 2]


def written_profile(run_folder, name="step_2/actor.rank_0.json.gz"):
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 0, "dur": 2e6, "pid": 1, "tid": 1}
    phase = {**event, "cat": "user_annotation", "name": "update_actor", "dur": 4e6}
    path = run_folder / "profile" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [event, phase]}).encode()))
    return path


def test_profiles_are_listed_summarized_and_sent(run_folder, tmp_path):
    path = written_profile(run_folder)
    (run_folder / "profile" / "memory.rank_0.pickle").write_bytes(b"no trace")
    name = "step_2/actor.rank_0.json.gz"
    answers = asked(run_folder, "/api/profiles", f"/api/profile?name={name}", f"/profile/0/{name}")
    listed = values(answers[0])["profiles"]
    assert [(one["name"], one["is_trace"]) for one in listed] == [("memory.rank_0.pickle", False), (name, True)]
    summary = values(answers[1])
    assert summary["idle_share"] == 0.5 and summary["phases"] == [["update_actor", 4.0]]
    assert summary["top"] == [{"name": "aten::mm", "seconds": 2.0, "calls": 1}]
    status, headers, _ = answers[2]
    assert status == 200 and int(headers["Content-Length"]) == path.stat().st_size
    assert headers["Content-Type"] == "application/octet-stream" and "attachment" in headers["Content-Disposition"]
    (run_folder / "profile" / "broken.json").write_text("{")  # left out
    export_page(ViewApi(find_runs([run_folder])), tmp_path / "page.html", num_steps=1)
    assert f"profile?name={name}&run=0" in (tmp_path / "page.html").read_text()


def test_only_profiles_of_the_run_are_sent(run_folder, tmp_path):
    written_profile(run_folder)
    (tmp_path / "secret.json").write_text("{}")
    (run_folder / "profile" / "link.json").symlink_to(tmp_path / "secret.json")
    (run_folder / "profile" / "broken.json").write_text("{")
    paths = ("/profile/0/link.json", "/profile/0/../metrics.jsonl", "/profile/0/%2e%2e/metrics.jsonl", "/profile/9/x")
    paths += ("/api/profile?name=link.json", "/api/profile?name=../metrics.jsonl", "/api/profile?name=broken.json")
    assert [status for status, _, _ in asked(run_folder, *paths)] == [404] * len(paths)
    (answer,) = asked(run_folder, "/profile/0/step_2/actor.rank_0.json.gz", cookie=False)
    assert answer[0] == 401


def test_a_long_trace_is_not_read(run_folder, monkeypatch):
    written_profile(run_folder)
    monkeypatch.setattr("burnish.view.runs.MAX_TRACE_BYTES", 10)
    (answer,) = asked(run_folder, "/api/profile?name=step_2/actor.rank_0.json.gz")
    assert answer[0] == 404 and "the trace has more than" in answer[2]
