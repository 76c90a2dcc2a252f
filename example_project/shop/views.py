"""The front page."""

from __future__ import annotations

from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from shop.models import Customer, Order, Payment, Receipt


def front(request: HttpRequest) -> HttpResponse:
    """Return the page that counts what the shop has, with the way to the admin."""
    counts = {
        "Orders": Order.objects.count(),
        "Customers": Customer.objects.count(),
        "Payments": Payment.objects.count(),
        "Receipts mailed": Receipt.objects.count(),
        "Amount": Order.objects.aggregate(amount=Sum("amount", default=0))["amount"],
    }
    return render(request, "shop/front.html", {"counts": counts})
