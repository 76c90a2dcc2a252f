'use strict';
/*
 * Goes on with a decision that is carried out in parts: submits the form of the next part, until Stop is pressed. Without this
 * script a person presses Continue. Stop holds too while a part is under way: the page that comes after it does not go on.
 */
{
    const PAUSE = 800; // milliseconds to press Stop in, and for the database to do something else
    const STOPPED = 'pgbus-stopped';

    const start = function() {
        const form = document.querySelector('form[data-pgbus-parts]');
        if (!form) {
            return;
        }
        const stop = form.querySelector('[data-pgbus-stop]');
        const next = form.querySelector('[data-pgbus-continue]');
        const halt = function() {
            window.clearTimeout(timer);
            window.sessionStorage.setItem(STOPPED, form.dataset.pgbusParts);
            stop.hidden = true;
            next.hidden = false;
            document.getElementById('pgbus-goes-on').hidden = true;
            document.getElementById('pgbus-is-stopped').hidden = false;
        };
        const timer = window.setTimeout(function() {
            form.submit();
        }, PAUSE);
        stop.hidden = false;
        stop.focus(); // whoever has no mouse is there in time
        next.hidden = true;
        stop.addEventListener('click', halt);
        next.addEventListener('click', function() {
            window.sessionStorage.removeItem(STOPPED);
        });
        if (window.sessionStorage.getItem(STOPPED) === form.dataset.pgbusParts) {
            halt();
        }
    };

    window.addEventListener('load', start);
}
