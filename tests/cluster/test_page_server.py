"""The page of a run on Dask's server."""

from urllib.request import urlopen

from fake_live import quickstart

from pipeline.cluster.address import OFF
from pipeline.cluster.dashboard import dashboard_link
from pipeline.cluster.local import local_client
from pipeline.cluster.page_server import mount_page


def read(link):
    with urlopen(link, timeout=30) as answer:
        return answer.read().decode()


def test_the_page_is_loaded_when_it_is_first_opened_and_leaves_the_dashboard_where_it_is(tmp_path):
    with local_client() as client:
        mount_page(client, tmp_path / "earlier")
        link = mount_page(client, quickstart().write(tmp_path / "run"))
        applications = client.cluster.scheduler.http_application.applications
        assert [type(application).__name__ for application in applications] == ["NotYet", "Application"]
        for _ in range(2):
            assert "run - pipeline" in read(link)
        assert "Dask" in read(dashboard_link(client))
        assert "run - pipeline" in read(link)
        assert [type(application).__name__ for application in applications] == ["BokehTornado", "DaskBokehTornado"]
        origins = applications[0].websocket_origins
        assert "127.0.0.1:*" in origins
        assert not {origin for origin in origins if origin.startswith("*")}


def test_a_run_without_a_dashboard_has_no_page(tmp_path):
    with local_client(OFF) as client:
        assert mount_page(client, tmp_path) is None
