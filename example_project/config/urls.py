"""The front page, the admin, and the addresses for monitors."""

from django.contrib import admin
from django.urls import include, path
from shop.views import front

urlpatterns = [
    path("", front, name="front"),
    path("admin/", admin.site.urls),
    path("pgbus/", include("django_pgbus.observability.urls")),
]
