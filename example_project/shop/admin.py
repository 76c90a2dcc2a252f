"""The shop's own pages in the admin, beside those of pgbus."""

from __future__ import annotations

from django.contrib import admin

from shop.models import AuditEntry, Customer, DayTotal, Order, Payment, Receipt, Run, SalesDay, StockMovement, Welcome


@admin.register(Customer)
class CustomerAdmin(admin.ModelAdmin):
    """Customers and their totals."""

    list_display = ("customer_id", "email", "orders_placed", "spent", "charged")
    search_fields = ("=customer_id",)


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    """Orders as the file had them."""

    list_display = ("order_id", "customer", "placed_on", "quantity", "unit_price", "amount")
    list_select_related = ("customer",)
    search_fields = ("=order_id", "=customer__customer_id")
    raw_id_fields = ("customer",)


@admin.register(Payment)
class PaymentAdmin(admin.ModelAdmin):
    """What the gateway confirmed."""

    list_display = ("reference", "order", "amount", "paid_at")
    list_select_related = ("order",)
    search_fields = ("=order__order_id",)
    raw_id_fields = ("order",)


@admin.register(Receipt)
class ReceiptAdmin(admin.ModelAdmin):
    """What was mailed."""

    list_display = ("order", "sent_to", "sent_at")
    list_select_related = ("order",)
    search_fields = ("=order__order_id",)
    raw_id_fields = ("order",)


@admin.register(Run)
class RunAdmin(admin.ModelAdmin):
    """Which limited jobs were at work when."""

    list_display = ("task", "key", "began", "ended")
    list_filter = ("task",)
    search_fields = ("=key",)


@admin.register(StockMovement)
class StockMovementAdmin(admin.ModelAdmin):
    """What each order took from the stock."""

    list_display = ("order", "quantity", "taken_at")
    list_select_related = ("order",)
    search_fields = ("=order__order_id",)
    raw_id_fields = ("order",)


@admin.register(SalesDay)
class SalesDayAdmin(admin.ModelAdmin):
    """What was sold on each day."""

    list_display = ("day", "orders", "quantity", "amount")
    date_hierarchy = "day"


@admin.register(DayTotal)
class DayTotalAdmin(admin.ModelAdmin):
    """What the readers of the ledger have added up."""

    list_display = ("day", "kept_by", "orders", "amount")
    list_filter = ("kept_by",)
    date_hierarchy = "day"


@admin.register(Welcome)
class WelcomeAdmin(admin.ModelAdmin):
    """Who was welcomed."""

    list_display = ("customer", "sent_to", "sent_at")
    list_select_related = ("customer",)
    search_fields = ("=customer__customer_id",)
    raw_id_fields = ("customer",)


@admin.register(AuditEntry)
class AuditEntryAdmin(admin.ModelAdmin):
    """Which events there were."""

    list_display = ("topic", "event_id", "published_at", "noted_at")
    list_filter = ("topic",)
    search_fields = ("=event_id", "=payload__order_id")
