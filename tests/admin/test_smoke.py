import pytest
from django.urls import reverse

from tests.admin import rows

pytestmark = pytest.mark.django_db


def test_pages(admin_client):
    w = rows.a_worker()
    objs = [rows.a_message(), rows.a_running(w.id), rows.a_delayed(), rows.an_archived(), rows.a_dead_letter()]
    for m in ("message", "delayed", "archived", "deadletter", "queuestate", "worker"):
        for q in ("", "?q=1", "?q=imp", "?queue=default"):
            if m in ("queuestate", "worker") and q:
                continue
            r = admin_client.get(reverse(f"admin:pgbus_{m}_changelist") + q)
            assert r.status_code == 200, (m, q, r)
    for o in objs:
        r = admin_client.get(reverse(f"admin:pgbus_{o._meta.model_name}_change", args=[o.pk]))
        assert r.status_code == 200
        if o._meta.model_name != "archived":
            r = admin_client.get(reverse(f"admin:pgbus_{o._meta.model_name}_discard", args=[o.pk]))
            assert r.status_code == 200
    r = admin_client.get(reverse("admin:app_list", args=["pgbus"]))
    assert r.status_code == 200
    print(r.content.decode()[2000:6000])
