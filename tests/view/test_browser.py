"""The viewer in a real browser, over runs of the demo; the screenshots of docs/view.md are made here."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import time
from pathlib import Path

import pytest

from burnish.demo.run import reinforce
from burnish.demo.tasks import TASKS
from burnish.log.folder import dump_rollouts
from burnish.view.api import ViewApi
from burnish.view.export import export_page
from burnish.view.runs import find_runs

from .chromium import chromium, viewer

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]  # two runs of the demo, on any machine

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "view"
# Set it to replace the screenshots of the docs; else they are only made.
IS_UPDATING = bool(os.environ.get("BURNISH_SCREENSHOTS"))
LOG_PROBS = "actor_rollout_ref.rollout.logprobs=4"


def write_unhealthy(folder: Path) -> None:
    """Metrics of a run with several problems."""
    folder.mkdir(parents=True)
    noise = random.Random(1)
    lines = []
    for step in range(1, 61):
        metrics = {
            "critic/score/mean": 0.5 + 0.3 * math.tanh(step / 20) + noise.gauss(0, 0.02),
            "rollout/zero_variance_groups": min(0.85, 0.1 + step / 70),
            "rollout/truncated": 0.02 + 0.25 * (step > 40),
            "actor/grad_norm": 0.8 + abs(noise.gauss(0, 0.1)) + 9 * (step == 52),
            "actor/entropy": 1.2 * 0.93**step,
            "rollout_corr/k3_kl": 4e-4,
            "reward/failed": float(step in (31, 32)),
            "timing_s/step": 30.0,
        }
        lines.append(json.dumps({"step": step, "data": metrics}) + "\n")
    (folder / "metrics.jsonl").write_text("".join(lines))
    (folder / "finished.json").write_text('{"step": 60, "total_steps": 60}')


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two runs of the demo with tools, and one with alarms."""
    folder, task = tmp_path_factory.mktemp("runs"), TASKS["tools"].load()()
    problems, model = task.make_problems(1), Path("model")
    with contextlib.chdir(folder):  # the screenshots show relative paths
        task.warm_up(model, problems, 1, lambda text: None)
        for name, *more in (("first",), ("higher_lr", "actor_rollout_ref.actor.optim.lr=1e-3")):
            settings = (LOG_PROBS, "trainer.save_freq=7", "trainer.logger=[file]", *more)
            reinforce(task, Path(name), model, problems, 1, 14, settings)
            Path(name, "run").rename(f"tools_{name}")
        profiled = ("trainer.profile_steps=[2]", "global_profiler.tool=torch", "trainer.logger=[file]")
        ranks = ("trainer.n_gpus_per_node=2", "trainer.launcher=processes", *profiled)
        all_roles = [f"actor_rollout_ref.{role}.profiler.all_ranks=true" for role in ("actor", "rollout")]
        reinforce(task, Path("ranks"), model, problems, 1, 3, (*ranks, *all_roles))
        Path("ranks", "run").rename("tools_two_ranks")
    write_unhealthy(folder / "unhealthy")
    return folder


@pytest.fixture(scope="module")
def browser():
    with chromium() as driver:
        yield driver


@pytest.fixture(autouse=True)
def fresh(browser):
    """No page of an earlier test asks its server, and its messages are forgotten."""
    browser.get("about:blank")
    browser.get_log("browser")


@pytest.fixture(scope="module")
def base(runs, browser):
    """The viewer's address; the browser has its cookie."""
    names = ("tools_first", "tools_higher_lr", "tools_two_ranks", "unhealthy")
    with viewer(*(Path(name) for name in names), current=runs) as url:
        browser.get(url)
        yield url.partition("/open/")[0]


def until(browser, script, seconds=20.0):
    """Wait until a script returns something true."""
    end = time.monotonic() + seconds
    while not (result := browser.execute_script(script)):
        assert time.monotonic() < end, script
        time.sleep(0.05)
    return result


def show(browser, base, page, wanted="true"):
    browser.get("about:blank")
    browser.get(f"{base}/#{page}")
    name = dict(word.split("=", 1) for word in page.split("&")).get("page", "curves")
    until(browser, f"return document.getElementById('main').dataset.ready === '{name}' && {wanted}")


def numbered(browser, base, name):
    """The number of the run of this name."""
    browser.get(base)
    script = "return fetch('/api/runs').then(r => r.json()).then(r => r.runs)"
    return next(run["id"] for run in browser.execute_script(script) if name in run["name"])


def screenshot(browser, tmp_path, name, selector=None):
    """Of the window, or of one element."""
    folder = SCREENSHOTS if IS_UPDATING else tmp_path
    folder.mkdir(exist_ok=True)
    if selector is None:
        assert browser.save_screenshot(str(folder / f"{name}.png"))
    else:
        browser.execute_script("document.getElementById('top').style.position = 'static'")  # else it covers a part
        element = browser.execute_script("return document.querySelector(arguments[0])", selector)
        assert element.screenshot(str(folder / f"{name}.png"))


def assert_quiet(browser):
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


def test_curves_of_several_runs(browser, base, tmp_path):
    first, second = numbered(browser, base, "tools_first"), numbered(browser, base, "higher_lr")
    show(browser, base, f"page=curves&runs={first},{second}", "document.querySelectorAll('.chart canvas').length > 8")
    painted = """const c = document.querySelector('.chart canvas');
      const p = c.getContext('2d').getImageData(0, 0, c.width, c.height);
      return new Set(p.data.filter((_, i) => i % 4 === 0)).size > 3"""
    until(browser, painted)
    screenshot(browser, tmp_path, "curves")
    drag = """const c = document.querySelectorAll('.chart canvas')[1], b = c.getBoundingClientRect();
      const at = (x) => ({clientX: b.left + x, clientY: b.top + 60, pointerType: 'mouse', bubbles: true});
      const send = (type, x) => c.dispatchEvent(new PointerEvent(type, at(x)));
      c.setPointerCapture = () => {}; send('pointerdown', 100); send('pointermove', 200); send('pointerup', 200);
      send('pointermove', 150); return [location.hash, document.getElementById('tip').hidden]"""
    hash_, is_hidden = browser.execute_script(drag)
    assert "zoom=" in hash_ and not is_hidden, "drag zooms and is part of the link; hover shows values"
    keys = """const c = document.querySelectorAll('.chart canvas')[1]; c.focus();
      const press = (key) => c.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
      press('Escape'); press('Home'); press('ArrowRight'); const tip = document.getElementById('tip').innerText;
      return [tip, location.hash]"""
    tip, hash_ = browser.execute_script(keys)
    assert tip.startswith("step 2") and "tools_first" in tip and "zoom" not in hash_
    assert_quiet(browser)


def test_health_shows_alarms_first(browser, base, tmp_path):
    run = numbered(browser, base, "unhealthy")
    show(browser, base, f"page=health&runs={run}", "document.querySelectorAll('.alarm').length >= 4")
    severities = [card.get_attribute("class").split()[-1] for card in browser.find_elements("css selector", ".alarm")]
    assert severities == sorted(severities, key=["critical", "warning", "notice"].index)
    screenshot(browser, tmp_path, "health")
    assert_quiet(browser)


def test_from_a_step_to_a_token(browser, base, tmp_path):
    run = numbered(browser, base, "tools_first")
    show(browser, base, f"page=samples&runs={run}", "document.querySelectorAll('.strip span').length > 0")
    groups = browser.find_elements("css selector", ".item")
    mixed = next(g for g in groups if len({i.get_attribute("style") for i in g.find_elements("tag name", "i")}) > 1)
    mixed.click()
    until(browser, "return document.querySelectorAll('.side .card').length === 8")
    scores = [float(element.text) for element in browser.find_elements("css selector", ".side .score")]
    assert scores == sorted(scores, reverse=True) and len(scores) == 8
    until(browser, "return document.querySelector('.turn.tool') !== null")
    screenshot(browser, tmp_path, "samples")
    until(browser, "return document.querySelectorAll('.strip .given').length > 0")
    choose = "const s = document.querySelector('.tools select[aria-label]'); s.value = 'entropys';"
    browser.execute_script(f"{choose} s.dispatchEvent(new Event('change'))")
    browser.execute_script("document.querySelector('.strip').scrollIntoView({block: 'center'})")
    button = browser.find_elements("css selector", ".tools button")[-2]
    browser.execute_script("arguments[0].click()", button)
    hover = """const s = document.querySelectorAll('.strip span')[8], b = s.getBoundingClientRect();
      s.dispatchEvent(new PointerEvent('pointerover', {clientX: b.left + 5, clientY: b.top + 5, bubbles: true}));
      return document.getElementById('tip').innerText"""
    until(browser, "return document.querySelector('.tools .small').innerText.length > 0")
    tip = browser.execute_script(hover)
    assert "advantage" in tip and "rollout log-prob" in tip and "likeliest tokens" in tip and "%" in tip
    screenshot(browser, tmp_path, "tokens")
    colors = "return new Set([...document.querySelectorAll('.strip span')].map(s => s.style.backgroundColor)).size"
    assert browser.execute_script(colors) > 1
    assert_quiet(browser)


def test_filters_search_and_keys(browser, base):
    run = numbered(browser, base, "tools_first")
    show(browser, base, f"page=samples&runs={run}", "document.querySelectorAll('.item').length > 0")
    count = "return document.querySelector('.split .small').innerText"
    before = browser.execute_script(count)
    browser.execute_script(
        "const i = document.querySelector('input[type=number]'); i.value = '0.9'; i.dispatchEvent(new Event('change'))"
    )
    assert browser.execute_script(count) != before
    browser.execute_script(
        "const i = document.getElementById('find'); i.value = 'CALCULATOR'; i.dispatchEvent(new Event('change'))"
    )
    until(browser, "return document.querySelectorAll('mark').length > 1")
    browser.execute_script("[...document.querySelectorAll('.item')].at(-1).click()")
    until(browser, "return location.hash.includes('row=') && document.querySelectorAll('mark').length > 1")
    press = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key: arguments[0], bubbles: true}))"
    browser.execute_script(press, "2")
    until(browser, "return document.getElementById('main').dataset.ready === 'health'")
    browser.execute_script(press, "l")
    until(browser, "return document.documentElement.lang === 'zh' && document.body.innerText.includes('健康')")
    assert_quiet(browser)


def test_timeline_and_config(browser, base, runs, tmp_path):
    first, second = numbered(browser, base, "tools_first"), numbered(browser, base, "higher_lr")
    show(browser, base, f"page=timeline&runs={first}", "document.querySelectorAll('.wide canvas').length === 3")
    screenshot(browser, tmp_path, "timeline")
    ranks = numbered(browser, base, "two_ranks")
    show(browser, base, f"page=timeline&runs={ranks}", "document.querySelectorAll('.wide canvas').length === 4")
    text = browser.execute_script("return document.body.innerText")
    assert "Processes in step 3" in text and "waiting for the engine" in text
    screenshot(browser, tmp_path, "processes", ".card.wide:has([aria-label='Processes in step'])")
    screenshot(browser, tmp_path, "conversations", ".card.wide:has([aria-label='Conversations of step'])")
    until(browser, "return document.querySelectorAll('.card.wide button').length === 2")  # a trace of each rank
    browser.execute_script("document.querySelector('.card.wide button').click()")
    until(browser, "return document.querySelectorAll('.profile-detail tr').length > 5")
    said = browser.execute_script("return document.querySelector('.profile-detail').innerText")
    assert "CPU operators" in said and "update_actor" in said and "aten::" in said and "idle" in said
    screenshot(browser, tmp_path, "profiles", ".card.wide:has(.profile-detail)")
    link = browser.execute_script("return document.querySelector('.card.wide a').href")
    size = f"return fetch('{link}').then(r => r.arrayBuffer()).then(b => b.byteLength)"
    assert browser.execute_script(size) == next(runs.glob("tools_two_ranks/profile/**/*rank_0*")).stat().st_size
    show(browser, base, f"page=config&runs={first},{second}", "document.querySelectorAll('table.data').length > 2")
    text = browser.execute_script("return document.body.innerText")
    assert "actor_rollout_ref.actor.optim.lr" in text and "0.001" in text and "burnish export" in text
    assert "update actor" in text and "perf/max_rss_gb" in text, "the plan and measured peaks"
    screenshot(browser, tmp_path, "config")
    assert_quiet(browser)


def test_dark_chinese_and_narrow(browser, base, tmp_path):
    first = numbered(browser, base, "tools_first")
    show(
        browser, base, f"page=samples&runs={first}&theme=dark&lang=zh", "document.querySelectorAll('.item').length > 0"
    )
    assert browser.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(22, 23, 26)"
    assert "样本" in browser.execute_script("return document.querySelector('nav').innerText")
    screenshot(browser, tmp_path, "dark")
    size = browser.get_window_size()
    browser.set_window_size(420, 860)
    show(browser, base, f"page=curves&runs={first}", "document.querySelectorAll('.chart canvas').length > 3")
    width = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    browser.set_window_size(size["width"], size["height"])
    assert width[0] <= width[1], "nothing is wider than a narrow screen"


def test_a_running_run_updates_itself(browser, runs, tmp_path):
    folder = tmp_path / "live"
    write_unhealthy(folder)
    (folder / "finished.json").unlink()
    with viewer(folder) as url:
        browser.get(url)
        until(browser, "return document.body.innerText.includes('60')")
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": 61, "data": {"critic/score/mean": 0.9, "val-core/a/acc": 0.5}}) + "\n")
        until(browser, "return document.querySelector('.chip').innerText.includes('61')")
        until(browser, "return document.querySelector('.chart .name').innerText === 'val-core/a/acc'")
        base, record = url.partition("/open/")[0], {"input": "a", "output": "b", "gts": "c", "score": 1}
        dump_rollouts(folder / "rollouts", 60, [record])
        show(browser, base, "page=samples", "document.querySelectorAll('.item').length === 1")
        dump_rollouts(folder / "rollouts", 61, [record])
        with open(folder / "metrics.jsonl", "a") as file:
            file.write(json.dumps({"step": 62, "data": {"critic/score/mean": 0.9}}) + "\n")
        until(browser, "return document.querySelector('.pressing').innerText.includes('61')")
        assert browser.execute_script("return document.querySelector('.tools select').value") == "60"
        assert_quiet(browser)


def test_a_folder_of_many_runs(browser, tmp_path):
    for number in range(20):
        write_unhealthy(tmp_path / f"run_{number}")
    with viewer(tmp_path) as url:
        browser.get(url)
        until(browser, "return document.querySelectorAll('.chip').length === 1")
        pick = """document.querySelector('.picker summary').click();
          const find = document.querySelector('.picker input[type=search]'); find.value = 'run_1';
          find.dispatchEvent(new Event('input'));
          const rows = document.querySelectorAll('.picker input[type=checkbox]'); rows[0].click(); return rows.length"""
        assert browser.execute_script(pick) == 11
        until(browser, "return document.querySelectorAll('.chip').length === 2 || location.hash.includes('run_1')")
        assert browser.execute_script("return document.querySelector('.picker').open")
        assert_quiet(browser)


HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>",
    "</textarea></script><svg onload=document.title='owned'>",
    "\u202eevil \x1b[31m\x07",
    "y" * 1_000_000,
)


def test_hostile_content_is_inert(browser, tmp_path):
    folder = tmp_path / HOSTILE[1][:4].replace("/", "_")
    write_unhealthy(folder)
    turns = [{"role": "tool", "text": HOSTILE[0], "tool_calls": [{"name": HOSTILE[0]}], "latency": 1}]
    record = {"gts": HOSTILE[1], "score": 1, "uid": HOSTILE[0], "finish_reason": HOSTILE[1], "data_source": HOSTILE[0]}
    rows = [{"input": text, "output": text, "turns": turns, "problem": HOSTILE[0], **record} for text in HOSTILE]
    dump_rollouts(folder / "rollouts", 1, rows)
    (folder / "notes.txt").write_text("\n".join(HOSTILE[:3]))
    page = tmp_path / "page.html"
    export_page(ViewApi(find_runs([folder])), page)
    with viewer(folder) as url:
        browser.get(url)
        for start in (url.partition("/open/")[0], page.as_uri()):
            for name in ("samples", "health", "curves"):
                browser.get("about:blank")
                browser.get(f"{start}#page={name}")
                until(browser, f"return document.getElementById('main').dataset.ready === '{name}'")
                if name == "samples":
                    until(browser, "return document.querySelectorAll('.turn').length > 2")
                    text = browser.execute_script("return document.body.innerText")
                    assert "<script>" in text and "⟨202e⟩" in text and "\u202e" not in text
                assert browser.title == "burnish view"
                assert (
                    browser.execute_script("return document.querySelectorAll('main img, main svg, main script').length")
                    == 0
                )


def test_an_export_needs_no_server(browser, runs, tmp_path):
    page = tmp_path / "page.html"
    export_page(ViewApi(find_runs([runs / "tools_first"])), page, num_steps=2)
    for name, wanted in (
        ("curves", "document.querySelectorAll('.chart').length > 5"),
        ("samples", "document.querySelectorAll('.strip span').length > 0"),
        ("timeline", "document.querySelectorAll('.wide canvas').length > 0"),
        ("config", "document.querySelectorAll('table.data').length > 2"),
    ):
        browser.get("about:blank")
        browser.get(f"{page.as_uri()}#page={name}")
        until(browser, f"return document.getElementById('main').dataset.ready === '{name}' && {wanted}")
    assert_quiet(browser)
