"""
What the shop knows: customers, their orders, what was paid and what was mailed, and which limited jobs ran when.

And what the handlers of events keep: the stock, the sales of each day, who was welcomed, and every event there was; and
what the readers of the ledger add up.
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _


class Customer(models.Model):
    """
    Somebody who ordered.

    Orders and what they come to are kept up by the transaction that writes an order, what was charged by
    `charge_customer`, of which one runs at a time for a customer.
    """

    customer_id = models.BigIntegerField(_("customer number"), primary_key=True)
    orders_placed = models.IntegerField(_("orders"), default=0)
    spent = models.DecimalField(_("spent"), max_digits=12, decimal_places=2, default=0)
    charged = models.DecimalField(_("charged"), max_digits=12, decimal_places=2, default=0)

    class Meta:
        verbose_name = _("customer")
        verbose_name_plural = _("customers")

    def __str__(self) -> str:
        return f"Customer {self.customer_id}"

    @property
    def email(self) -> str:
        """Return where receipts go."""
        return f"customer-{self.customer_id}@example.com"


class Order(models.Model):
    """One order, as the file had it, and its unit price."""

    order_id = models.BigIntegerField(_("order number"), primary_key=True)
    customer = models.ForeignKey(Customer, verbose_name=_("customer"), on_delete=models.PROTECT, related_name="orders")
    placed_on = models.DateField(_("placed on"))
    quantity = models.IntegerField(_("quantity"))
    amount = models.DecimalField(_("amount"), max_digits=10, decimal_places=2)
    unit_price = models.DecimalField(_("unit price"), max_digits=10, decimal_places=2)
    written_at = models.DateTimeField(_("written at"), auto_now_add=True)

    class Meta:
        verbose_name = _("order")
        verbose_name_plural = _("orders")
        constraints = [
            models.CheckConstraint(condition=Q(quantity__gt=0), name="shop_order_quantity"),
            models.CheckConstraint(condition=Q(amount__gte=0), name="shop_order_amount"),
        ]

    def __str__(self) -> str:
        return f"Order {self.order_id}"


class Payment(models.Model):
    """What the gateway confirmed for an order: at most once."""

    order = models.OneToOneField(Order, verbose_name=_("order"), on_delete=models.PROTECT, primary_key=True)
    amount = models.DecimalField(_("amount"), max_digits=10, decimal_places=2)
    reference = models.CharField(_("reference"), max_length=100)
    paid_at = models.DateTimeField(_("paid at"), auto_now_add=True)

    class Meta:
        verbose_name = _("payment")
        verbose_name_plural = _("payments")

    def __str__(self) -> str:
        return f"Payment {self.reference}"


class Receipt(models.Model):
    """A receipt that was mailed."""

    order = models.OneToOneField(Order, verbose_name=_("order"), on_delete=models.PROTECT, primary_key=True)
    sent_to = models.EmailField(_("sent to"))
    sent_at = models.DateTimeField(_("sent at"), auto_now_add=True)

    class Meta:
        verbose_name = _("receipt")
        verbose_name_plural = _("receipts")

    def __str__(self) -> str:
        return f"Receipt for order {self.order_id}"


class Run(models.Model):
    """From when to when a limited job was at work, by the database's clock; one that was killed leaves none."""

    id = models.BigAutoField(primary_key=True)
    task = models.CharField(_("task"), max_length=100)
    key = models.CharField(_("limited by"), max_length=100)
    began = models.DateTimeField(_("began"))
    ended = models.DateTimeField(_("ended"))

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        constraints = [
            models.CheckConstraint(condition=Q(ended__gte=F("began")), name="shop_run_ends_after_it_began"),
        ]

    def __str__(self) -> str:
        return f"{self.task} for {self.key}"


class StockMovement(models.Model):
    """What an order took from the stock: once, however often it is told."""

    order = models.OneToOneField(Order, verbose_name=_("order"), on_delete=models.PROTECT, primary_key=True)
    quantity = models.IntegerField(_("quantity"))
    taken_at = models.DateTimeField(_("taken at"), auto_now_add=True)

    class Meta:
        verbose_name = _("stock movement")
        verbose_name_plural = _("stock movements")

    def __str__(self) -> str:
        return f"{self.quantity} for order {self.order_id}"


class SalesDay(models.Model):
    """What was sold on a day, kept up order by order."""

    day = models.DateField(_("day"), primary_key=True)
    orders = models.IntegerField(_("orders"), default=0)
    quantity = models.IntegerField(_("quantity"), default=0)
    amount = models.DecimalField(_("amount"), max_digits=12, decimal_places=2, default=0)

    class Meta:
        verbose_name = _("sales of a day")
        verbose_name_plural = _("sales by day")

    def __str__(self) -> str:
        return f"Sales of {self.day}"


class DayTotal(models.Model):
    """What the orders of a day come to, as one group of the ledger's readers has added it up."""

    id = models.BigAutoField(primary_key=True)
    kept_by = models.CharField(_("kept by"), max_length=20)
    day = models.DateField(_("day"))
    orders = models.IntegerField(_("orders"), default=0)
    amount = models.DecimalField(_("amount"), max_digits=12, decimal_places=2, default=0)

    class Meta:
        verbose_name = _("total of a day")
        verbose_name_plural = _("totals by day")
        constraints = [models.UniqueConstraint(fields=["kept_by", "day"], name="shop_daytotal_once")]

    def __str__(self) -> str:
        return f"{self.day}, by {self.kept_by}"


class Welcome(models.Model):
    """A greeting that was mailed."""

    customer = models.OneToOneField(Customer, verbose_name=_("customer"), on_delete=models.PROTECT, primary_key=True)
    sent_to = models.EmailField(_("sent to"))
    sent_at = models.DateTimeField(_("sent at"), auto_now_add=True)

    class Meta:
        verbose_name = _("welcome")
        verbose_name_plural = _("welcomes")

    def __str__(self) -> str:
        return f"Welcome for customer {self.customer_id}"


class AuditEntry(models.Model):
    """An event, as it was published."""

    event_id = models.UUIDField(_("event"), primary_key=True)
    topic = models.CharField(_("topic"), max_length=255)
    payload = models.JSONField(_("payload"))
    published_at = models.DateTimeField(_("published at"))
    noted_at = models.DateTimeField(_("noted at"), auto_now_add=True)

    class Meta:
        verbose_name = _("audit entry")
        verbose_name_plural = _("audit")

    def __str__(self) -> str:
        return f"{self.topic} {self.event_id}"
