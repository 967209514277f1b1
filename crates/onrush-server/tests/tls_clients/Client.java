// A client of java.net.http. Arguments: the URL of the server, and the file of its authority.
import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.Arrays;
import javax.net.ssl.SSLContext;
import javax.net.ssl.SSLParameters;
import javax.net.ssl.TrustManagerFactory;

public class Client {
    static void expect(String what, Object found, Object expected) {
        if (!found.equals(expected)) {
            throw new AssertionError(what + ": " + found + " instead of " + expected);
        }
    }

    public static void main(String[] arguments) throws Exception {
        var base = arguments[0];
        var store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (var file = new FileInputStream(arguments[1])) {
            var certificate = CertificateFactory.getInstance("X.509").generateCertificate(file);
            store.setCertificateEntry("authority", certificate);
        }
        var trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        var context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        for (var version : new String[] {"TLSv1.2", "TLSv1.3"}) {
            var parameters = new SSLParameters();
            parameters.setProtocols(new String[] {version});
            var client = HttpClient.newBuilder()
                .sslContext(context).sslParameters(parameters).build();
            var object = URI.create(base + "/from-java");
            var large = new byte[3_000_000];
            Arrays.fill(large, (byte) 'x');
            var body = HttpRequest.BodyPublishers.ofByteArray(large);
            var put = client.send(HttpRequest.newBuilder(object).PUT(body).build(),
                BodyHandlers.ofString());
            expect("PUT", put.statusCode() / 100, 2);
            expect("version", put.sslSession().get().getProtocol(), version);
            expect("protocol", put.version(), HttpClient.Version.HTTP_2);
            HttpResponse<byte[]> got = client.send(HttpRequest.newBuilder(object).build(),
                BodyHandlers.ofByteArray());
            expect("GET", Arrays.equals(got.body(), large), true);
            var part = HttpRequest.newBuilder(object).header("Range", "bytes=3-6").build();
            var range = client.send(part, BodyHandlers.ofString());
            expect("status of a range", range.statusCode(), 206);
            expect("range", range.body(), "xxxx");
        }
        System.out.println("done");
    }
}
