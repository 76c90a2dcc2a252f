"""The app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """The record shop."""

    name = "shop"
    verbose_name = "Record shop"
