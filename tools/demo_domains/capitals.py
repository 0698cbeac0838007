"""Capitals of countries."""

from __future__ import annotations

from random import Random

from tools.demo_domains.grammar import Language, Phrases, Split, Turn

_TABLE = """
France Paris 法国 巴黎;Germany Berlin 德国 柏林;Italy Rome 意大利 罗马;Spain Madrid 西班牙 马德里
Portugal Lisbon 葡萄牙 里斯本;Austria Vienna 奥地利 维也纳;Belgium Brussels 比利时 布鲁塞尔
Netherlands Amsterdam 荷兰 阿姆斯特丹;Denmark Copenhagen 丹麦 哥本哈根;Sweden Stockholm 瑞典 斯德哥尔摩
Norway Oslo 挪威 奥斯陆;Finland Helsinki 芬兰 赫尔辛基;Iceland Reykjavik 冰岛 雷克雅未克
Ireland Dublin 爱尔兰 都柏林;England London 英国 伦敦;Poland Warsaw 波兰 华沙;Greece Athens 希腊 雅典
Hungary Budapest 匈牙利 布达佩斯;Romania Bucharest 罗马尼亚 布加勒斯特;Bulgaria Sofia 保加利亚 索非亚
Croatia Zagreb 克罗地亚 萨格勒布;Serbia Belgrade 塞尔维亚 贝尔格莱德;Ukraine Kyiv 乌克兰 基辅
Russia Moscow 俄罗斯 莫斯科;Turkey Ankara 土耳其 安卡拉;Egypt Cairo 埃及 开罗;Morocco Rabat 摩洛哥 拉巴特
Algeria Algiers 阿尔及利亚 阿尔及尔;Tunisia Tunis 突尼斯 突尼斯市;Kenya Nairobi 肯尼亚 内罗毕
Ethiopia Addis_Ababa 埃塞俄比亚 亚的斯亚贝巴;Ghana Accra 加纳 阿克拉;Nigeria Abuja 尼日利亚 阿布贾
Senegal Dakar 塞内加尔 达喀尔;Angola Luanda 安哥拉 罗安达;Uganda Kampala 乌干达 坎帕拉
China Beijing 中国 北京;Japan Tokyo 日本 东京;South_Korea Seoul 韩国 首尔;North_Korea Pyongyang 朝鲜 平壤
Mongolia Ulaanbaatar 蒙古 乌兰巴托;India New_Delhi 印度 新德里;Pakistan Islamabad 巴基斯坦 伊斯兰堡
Nepal Kathmandu 尼泊尔 加德满都;Bangladesh Dhaka 孟加拉国 达卡;Thailand Bangkok 泰国 曼谷
Vietnam Hanoi 越南 河内;Cambodia Phnom_Penh 柬埔寨 金边;Laos Vientiane 老挝 万象
Malaysia Kuala_Lumpur 马来西亚 吉隆坡;Indonesia Jakarta 印度尼西亚 雅加达;Philippines Manila 菲律宾 马尼拉
Singapore Singapore 新加坡 新加坡;Iran Tehran 伊朗 德黑兰;Iraq Baghdad 伊拉克 巴格达
Jordan Amman 约旦 安曼;Lebanon Beirut 黎巴嫩 贝鲁特;Syria Damascus 叙利亚 大马士革
Saudi_Arabia Riyadh 沙特阿拉伯 利雅得;Qatar Doha 卡塔尔 多哈;Oman Muscat 阿曼 马斯喀特
Australia Canberra 澳大利亚 堪培拉;New_Zealand Wellington 新西兰 惠灵顿;Canada Ottawa 加拿大 渥太华
Mexico Mexico_City 墨西哥 墨西哥城;Cuba Havana 古巴 哈瓦那;Jamaica Kingston 牙买加 金斯敦
Panama Panama_City 巴拿马 巴拿马城;Colombia Bogota 哥伦比亚 波哥大;Venezuela Caracas 委内瑞拉 加拉加斯
Peru Lima 秘鲁 利马;Chile Santiago 智利 圣地亚哥;Argentina Buenos_Aires 阿根廷 布宜诺斯艾利斯
Uruguay Montevideo 乌拉圭 蒙得维的亚;Paraguay Asuncion 巴拉圭 亚松森;Brazil Brasilia 巴西 巴西利亚
Ecuador Quito 厄瓜多尔 基多;Kazakhstan Astana 哈萨克斯坦 阿斯塔纳
"""
_ROWS = [
    [cell.replace("_", " ") for cell in row.split()]
    for row in _TABLE.strip().replace("\n", ";").split(";")
]
CAPITALS: dict[Language, list[tuple[str, str]]] = {
    "en": [(row[0], row[1]) for row in _ROWS],
    "zh": [(row[2], row[3]) for row in _ROWS],
}
QUESTIONS = {
    "en": Phrases(
        "{|and |so |hey, |please tell me, }{what is|what's|whats|name|tell me|do you know|which city is|say}"
        " the capital {of|city of} <c>{|?}",
        "{|the }capital of <c>{|?}",
        "<c>{'s capital| capital|: capital|, capital}{|?}",
        "{what|which city} is <c>'s capital{| city}?",
    ),
    "zh": Phrases(
        "{|请问|请告诉我|告诉我|你知道|那么|说说}<c>{的首都是哪里？|的首都是什么？|的首都是哪个城市？|的首都？|的首都在哪里？|首都是哪里？|首都}",
        "{哪里|哪个城市|什么城市}是<c>的首都？",
        "<c>{的首都叫什么？|首都是哪？|的首都|首都在哪？}",
    ),
}


def sample(rng: Random, split: Split, language: Language) -> Turn:
    """Asks for a capital."""
    country, city = rng.choice(CAPITALS[language])
    asked = country.lower() if rng.random() < 0.25 else country
    question = QUESTIONS[language].pick(rng, split, c=asked)
    if language == "zh":
        return Turn(question, f"{country}的首都是{city}。")
    article = "the " if country in ("Netherlands", "Philippines") else ""
    if article and rng.random() < 0.6:
        question = question.replace(asked, article + asked)
    return Turn(question, f"The capital of {article}{country} is {city}.")
