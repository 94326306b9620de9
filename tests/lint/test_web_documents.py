"""The pages about the web server name exactly the existing metrics and routes."""

from __future__ import annotations

import json
import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from scaler.monitor.web.api import ROUTES, openapi
from scaler.monitor.web.security import CONTENT_SECURITY_POLICY
from tests.unit.monitor.web_rig import ask

DOCS = Path(__file__).parents[2] / "docs"
_METRIC = re.compile(r"\bscaler_[a-z_]+\b(?![.-])")
NOT_METRICS = {"scaler_ui", "scaler_gui"}


def names_told() -> tuple[set[str], set[str]]:
    """Return the metrics by their own names, and by the names in queries."""
    families = list(text_string_to_metric_families(ask("/metrics").text))
    samples = {sample.name for family in families for sample in family.samples}
    own = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    return own, samples


def test_metrics_page_lists_exactly_the_existing_metrics() -> None:
    own, samples = names_told()
    page = (DOCS / "metrics.md").read_text()
    listed = set(_METRIC.findall("\n".join(line for line in page.splitlines() if line.startswith("| `scaler_"))))
    assert listed == own
    assert set(_METRIC.findall(page)) - NOT_METRICS <= own | samples


def test_dashboard_queries_existing_metrics() -> None:
    dashboard = json.loads((DOCS / "grafana.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = set(_METRIC.findall(" ".join(expressions)))
    _, samples = names_told()
    assert asked <= samples
    assert len(expressions) > 15


def test_routes_page_lists_each_route_with_its_parameters() -> None:
    page = (DOCS / "web-api.md").read_text()
    for route in ROUTES:
        found = re.search(rf"^\| `{re.escape(route.path)}(\?[^`]*)?` \|", page, re.MULTILINE)
        assert found, f"{route.path} is not on the page"
        assert set(re.findall(r"(\w+)=", found[1] or "")) == {parameter.name for parameter in route.parameters}
    listed = re.findall(r"^\| `(/api/[^`?]+)", page, re.MULTILINE)
    assert set(listed) == {route.path for route in ROUTES} | {"/api/openapi.json"}


def test_routes_page_names_every_column() -> None:
    page = (DOCS / "web-api.md").read_text()
    schemas = openapi()["components"]["schemas"]
    del schemas["TraceAnswer"]  # the format of other programs
    for name, schema in schemas.items():
        for column in schema["properties"]:
            assert re.search(rf"[`\"]{column}[`\"]", page), f"{column} of {name} is not on the page"


def test_routes_page_has_the_policy_that_is_sent() -> None:
    page = " ".join((DOCS / "web-api.md").read_text().split())
    assert CONTENT_SECURITY_POLICY in page
