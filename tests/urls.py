"""The URLs of the test project."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("pgbus/", include("django_pgbus.observability.urls"))]
