"""
Receipts by mail.

A mail cannot be taken back, so it goes out at least once: a worker killed between sending and noting it sends again.
The Message-ID is made of the order number, by which a mail program (and the closing table) knows the second copy.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

from django.core.mail import EmailMessage

from shop.models import Order, Receipt


def send(order: Order) -> bool:
    """Return True if this call mailed the receipt, False if it was mailed before."""
    if Receipt.objects.filter(order=order).exists():
        return False
    letter(order).send()
    return Receipt.objects.get_or_create(order=order, defaults={"sent_to": order.customer.email})[1]


def letter(order: Order) -> EmailMessage:
    """Return the receipt of an order."""
    return EmailMessage(
        subject=f"Your order {order.order_id}",
        body=(
            f"Thank you for your order of {order.placed_on}.\n\n"
            f"{order.quantity} x {order.unit_price} = {order.amount} US dollars\n"
        ),
        to=[order.customer.email],
        headers={"Message-ID": f"<order-{order.order_id}@shop.example.com>"},
    )


def mailed(folder: Path, about: str = "order") -> Counter[int]:
    """Return how many mails about each order, or each import, stand in the folder of the file backend."""
    message_id = re.compile(rf"^Message-ID: <{about}-(\d+)@shop\.example\.com>".encode(), re.MULTILINE)
    return Counter(
        int(number) for file in sorted(folder.glob("*.log")) for number in message_id.findall(file.read_bytes())
    )
