"""
The addresses for monitors and orchestrators.

path("pgbus/", include("django_pgbus.observability.urls")) gives /pgbus/api/metrics, /pgbus/api/health/live and
/pgbus/api/health/ready, which is /pgbus/api/health too.
"""

from django.urls import path

from django_pgbus.observability import views

app_name = "pgbus"
urlpatterns = [
    path("api/metrics", views.metrics, name="metrics"),
    path("api/health", views.ready, name="health"),
    path("api/health/live", views.live, name="live"),
    path("api/health/ready", views.ready, name="ready"),
]
