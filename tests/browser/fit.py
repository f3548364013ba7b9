"""What a reader would call cut, covered, distorted or hard to read, found by measuring the page."""

from playwright.sync_api import Locator, Page

# Outputs, texts and code lines that are wider than their place in the notebook.
TOO_WIDE = """() => [...document.querySelectorAll('.jp-OutputArea-output, .jp-RenderedMarkdown, .cm-scroller')]
    .filter(part => part.scrollWidth > part.clientWidth + 1)
    .map(part => `wider than its place: ${part.textContent.slice(0, 80)}`)"""

FAULTS = """panel => {
    const faults = [], box = part => part.getBoundingClientRect();
    const name = part => `${part.className || part.tagName} "${part.textContent}"`;
    const texts = '.widget-label, button, .widget-readout, b, th, td, p';
    const parts = [...panel.querySelectorAll(texts + ', img, .noUi-target, .noUi-handle')]
        .filter(part => box(part).width > 0);

    const outer = box(panel);
    for (const part of parts) {
        const {left, right, top, bottom, width, height} = box(part);
        if (left < outer.left - 1 || right > outer.right + 1 || top < outer.top - 1 || bottom > outer.bottom + 1)
            faults.push(`${name(part)} reaches out of the panel`);
        if (part.matches(texts) && part.scrollWidth > Math.max(part.clientWidth, Math.ceil(width)))
            faults.push(`${name(part)} is cut`);
        if (part.naturalWidth && Math.abs(width / height * part.naturalHeight / part.naturalWidth - 1) > 0.02)
            faults.push(`the picture is distorted: ${width} x ${height}`);
    }

    parts.forEach((one, i) => parts.slice(i + 1).forEach(other => {
        const a = box(one), b = box(other);
        const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        if (wide > 1 && high > 1 && !one.contains(other)) faults.push(`${name(one)} and ${name(other)} overlap`);
    }));

    // contrast as the Web Content Accessibility Guidelines (WCAG 2.2, 1.4.3) define it
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const light = colour => numbers(colour).slice(0, 3).map(c => c / 255)
        .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    for (const part of parts.filter(part => part.matches(texts) && part.textContent)) {
        let behind = part;
        while (numbers(getComputedStyle(behind).backgroundColor)[3] === 0) behind = behind.parentElement;
        const [dark, bright] = [getComputedStyle(part).color, getComputedStyle(behind).backgroundColor]
            .map(light).sort((a, b) => a - b);
        const contrast = (bright + 0.05) / (dark + 0.05);
        if (contrast < 4.5) faults.push(`${name(part)} is hard to read: contrast ${contrast.toFixed(1)}`);
    }
    return faults;
}"""


def too_wide(page: Page) -> list[str]:
    """Outputs, texts and code lines of the open notebook that a reader must scroll sideways to see."""
    found: list[str] = page.evaluate(TOO_WIDE)
    return found


def faults(panel: Locator) -> list[str]:
    """What is cut, covered, distorted, out of place or hard to read in an explorer's panel."""
    found: list[str] = panel.evaluate(FAULTS)
    return found
