"""Panels, variables and links of the dashboards, by Grafana's SDK."""

from collections.abc import Iterable, Sequence
from typing import Any

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    BigValueTextMode,
    LegendDisplayMode,
    LegendPlacement,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
TAG = "rolecall"
_HALF, _SIXTH = 12, 4
_HIDDEN = ("Time", "Value", "__name__", "instance", "endpoint", "namespace", "pod", "service", "container")
_ALARM = [models.Threshold(None, "green"), models.Threshold(1, "red")]

Panel = timeseries.Panel | stat.Panel | table.Panel
Query = tuple[str, str]
"""An expression of PromQL, and the names of its curves."""


def graph(
    title: str,
    description: str,
    unit: str,
    *queries: Query,
    width: int = _HALF,
    least: float | None = 0,
    stacked: bool = False,
) -> Panel:
    """Curves over time; `least` is the lower end of the axis, and None leaves it to the data."""
    panel = timeseries.Panel().title(title).description(description).datasource(SOURCE).unit(unit).span(width).height(8)
    panel.legend(
        common.VizLegendOptions()
        .display_mode(LegendDisplayMode.LIST)
        .placement(LegendPlacement.BOTTOM)
        .show_legend(True)
    )
    panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    if least is not None:
        panel.min(least)
    if stacked:
        panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(30)
    return panel.targets(list(_targets(queries)))


def number(
    title: str,
    description: str,
    unit: str,
    expr: str,
    *,
    least: float | None = 0,
    most: float | None = None,
    alarm: bool = False,
) -> Panel:
    """The newest value; with `alarm` it is green at 0 and red from 1."""
    panel = _value(title, description, unit).targets(list(_targets([(expr, "__auto")])))
    panel.color_mode(BigValueColorMode.VALUE if alarm else BigValueColorMode.NONE).graph_mode(BigValueGraphMode.AREA)
    if alarm:
        panel.thresholds(build.ThresholdsConfig().mode(models.ThresholdsMode.ABSOLUTE).steps(_ALARM))
    if least is not None:
        panel.min(least)
    if most is not None:
        panel.max(most)
    return panel


def label(title: str, description: str, *queries: Query) -> Panel:
    """The values of labels now, in the names of the curves."""
    panel = _value(title, description, "short").targets([query.instant() for query in _targets(queries)])
    panel.color_mode(BigValueColorMode.NONE).graph_mode(BigValueGraphMode.NONE)
    return panel.text_mode(BigValueTextMode.NAME)


def labels(title: str, description: str, expr: str, columns: Sequence[str], links: dict[str, str]) -> Panel:
    """A table of the labels in `columns`, and `links` from the values of some of them."""
    query = prometheus.Dataquery().ref_id("A").expr(expr).format(PromQueryFormat.TABLE).instant()
    panel = (
        table.Panel()
        .show_header(True)
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .unit("short")
        .span(_HALF)
        .height(8)
    )
    for column, url in links.items():
        link = [{"title": f"Open the {column}", "url": url}]
        panel.override_by_name(column, [models.DynamicConfigValue("links", link)])
    order = {name: at for at, name in enumerate(columns)}
    options = {"excludeByName": dict.fromkeys(_HIDDEN, True), "indexByName": order}
    return panel.targets([query]).transformations([models.DataTransformerConfig(id_val="organize", options=options)])


def board(uid: str, title: str, description: str, panels: Iterable[Panel]) -> build.Dashboard:
    """A dashboard of these panels, line by line, that leads to all others."""
    found = build.Dashboard(title).uid(uid).description(description).tags([TAG]).readonly().timezone("browser")
    found.time("now-1h", "now").refresh("10s").variables([_source()])
    links = build.DashboardLink("Rolecall").type(models.DashboardLinkType.DASHBOARDS).tags([TAG])
    found.link(links.as_dropdown(True).include_vars(True).keep_time(True))
    for at, panel in enumerate(panels, 1):
        found.with_panel(panel.id(at))
    return found


def job_variable(selector: str = "") -> build.QueryVariable:
    """The variable `$job`: the jobs that Prometheus knows with these labels."""
    values = f"label_values(rolecall_job_state{selector}, job)"
    variable = build.QueryVariable("job").label("Job").datasource(SOURCE).query({"query": values, "refId": "job"})
    return variable.refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)


def role_variable() -> build.QueryVariable:
    """The variable `$role`, a regular expression: one role, several, or all, as at first."""
    values = "label_values(rolecall_nodes, role)"
    variable = build.QueryVariable("role").label("Role").datasource(SOURCE).query({"query": values, "refId": "role"})
    variable.description("Limits the graphs of nodes, slots and workers by role.").multi(True)
    variable.include_all(True).all_value(".*").current(models.VariableOption(text=["All"], value=["$__all"]))
    return variable.refresh(models.VariableRefresh.ON_DASHBOARD_LOAD)


class Marks(build.AnnotationQuery):
    """Marks at the times, in seconds since 1970, that are the values of a gauge."""

    def __init__(self, name: str, color: str, gauge: str, text: str) -> None:
        super().__init__()
        self.name(name).datasource(SOURCE).enable(True).hide(False).icon_color(color).expr(f"1000 * {gauge}")
        self._text = text

    def build(self) -> models.AnnotationQuery:
        """The annotation, with the fields of Prometheus that the SDK's type lacks."""
        found = _PrometheusMarks(**vars(super().build()))
        found.text = self._text
        return found


class _PrometheusMarks(models.AnnotationQuery):
    text = ""

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"useValueForTime": True, "titleFormat": self.text}


def _value(title: str, description: str, unit: str) -> stat.Panel:
    panel = stat.Panel().title(title).description(description).datasource(SOURCE).unit(unit)
    panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    return panel.span(_SIXTH).height(4)


def _targets(queries: Iterable[Query]) -> Iterable[prometheus.Dataquery]:
    for reference, (expr, name) in zip("ABCDEF", queries, strict=False):
        yield prometheus.Dataquery().ref_id(reference).expr(expr).legend_format(name)


def _source() -> build.DatasourceVariable:
    return build.DatasourceVariable("datasource").label("Data source").type("prometheus")
