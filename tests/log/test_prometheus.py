"""The /metrics endpoint: the format, what it listens on, and the configuration for Prometheus."""

import http.client

import pytest

from burnish.errors import UserError
from burnish.log.logger import Loggers, RunInfo
from burnish.log.prometheus import HEADER, MetricsEndpoint, ScrapeConfig


@pytest.fixture
def endpoint(tmp_path):
    endpoint = MetricsEndpoint("127.0.0.1", 0)
    endpoint.start(RunInfo('pro"ject', "run\n1", tmp_path))
    yield endpoint
    endpoint.close()


def get(endpoint, path="/metrics"):
    connection = http.client.HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.getheader("Content-Type"), text


def test_the_newest_values_are_served_in_prometheus_format(endpoint):
    endpoint.log(1, {"actor/pg_loss": 0.5, "val-core/x/mean@4": float("nan")})
    endpoint.log(2, {"actor/pg_loss": 0.25, "a": float("inf")})
    status, kind, text = get(endpoint)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    labels = '{project="pro\\"ject",run="run\\n1"}'
    assert f"# TYPE burnish_actor_pg_loss gauge\nburnish_actor_pg_loss{labels} 0.25\n" in text
    assert f"burnish_val_core_x_mean_4{labels} NaN\n" in text
    assert f"burnish_a{labels} +Inf\n" in text and f"burnish_step{labels} 2.0\n" in text


@pytest.mark.long
def test_the_parser_of_prometheus_reads_it(endpoint):
    from prometheus_client.parser import text_string_to_metric_families

    endpoint.log(1, {"x/y": 1.0})
    samples = [sample for family in text_string_to_metric_families(get(endpoint)[2]) for sample in family.samples]
    assert [(sample.name, sample.labels["run"], sample.value) for sample in samples] == [
        ("burnish_x_y", "run\n1", 1.0),
        ("burnish_step", "run\n1", 1.0),
    ]


def test_nothing_else_is_served(endpoint):
    assert get(endpoint, "/")[0] == 404
    assert endpoint.server.server_address[0] == "127.0.0.1"


@pytest.mark.parametrize(("error", "is_reported"), [(BrokenPipeError(), False), (ValueError("a bug"), True)])
def test_a_client_that_hangs_up_is_not_reported(endpoint, capsys, error, is_reported):
    try:
        raise error
    except type(error):
        endpoint.server.handle_error(None, ("127.0.0.1", 1))
    assert ("Traceback" in capsys.readouterr().err) is is_reported


def test_a_port_in_use_is_refused_by_its_key(endpoint, tmp_path):
    loggers = Loggers([])
    loggers.add("metrics", MetricsEndpoint("127.0.0.1", endpoint.port))
    with pytest.raises(UserError, match="cannot serve metrics") as caught:
        loggers.start(RunInfo("p", "n", tmp_path))
    assert caught.value.key == "trainer.metrics_port"


def test_a_configuration_of_the_user_is_not_replaced(tmp_path):
    file = tmp_path / "prometheus.yml"
    file.write_text("global: {}\n")
    with pytest.raises(UserError, match="did not write it"):
        ScrapeConfig(file, 1, "model").announce("127.0.0.1:2")
    file.write_text(HEADER)
    ScrapeConfig(file, 1, "model").announce("127.0.0.1:2")
    assert "targets: ['127.0.0.1:2']" in file.read_text()
