"""The front page and the admin."""

from django.contrib import admin
from django.urls import path
from shop.views import front

urlpatterns = [
    path("", front, name="front"),
    path("admin/", admin.site.urls),
]
